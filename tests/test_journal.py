"""A journal keeps whole entries, whatever happens to its file."""

import os
import signal
import subprocess
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from simfl.callbacks import TreeRecord
from simfl.errors import FileError
from simfl.hub.journal import Grew, Journal, Scored, missed_trees


def entry(number):
    record = TreeRecord(round=number, builder="a", train={"logloss": 0.5}, validation={}, bytes=1, seconds=0.1)
    return Scored(record=record)


def written(path, n=5):
    journal = Journal(path)
    for number in range(n):
        journal.append(entry(number))
    journal.close()
    return path.read_bytes()


def test_what_was_written_is_read_again(tmp_path):
    written(tmp_path / "journal")
    assert Journal(tmp_path / "journal").entries == [entry(number) for number in range(5)]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
@given(st.data())
def test_a_torn_tail_is_cut_off_and_writing_goes_on(tmp_path, data):
    path = tmp_path / "journal"
    path.unlink(missing_ok=True)
    whole = written(path)
    path.write_bytes(whole[: data.draw(st.integers(0, len(whole)))])
    journal = Journal(path)
    kept = len(journal.entries)
    assert journal.entries == [entry(number) for number in range(kept)]
    journal.append(entry(99))
    journal.close()
    assert Journal(path).entries == [*(entry(number) for number in range(kept)), entry(99)]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
@given(st.data())
def test_a_damaged_entry_is_never_taken_for_a_whole_one(tmp_path, data):
    path = tmp_path / "journal"
    path.unlink(missing_ok=True)
    whole = bytearray(written(path))
    at = data.draw(st.integers(16, len(whole) - 1))
    whole[at] ^= data.draw(st.integers(1, 255))
    path.write_bytes(whole)
    entries = Journal(path).entries
    assert entries == [entry(number) for number in range(len(entries))]
    assert len(entries) < 5


def test_another_file_is_left_as_it_is(tmp_path):
    (tmp_path / "journal").write_text("my notes")
    with pytest.raises(FileError, match="left as it is"):
        Journal(tmp_path / "journal")
    assert (tmp_path / "journal").read_text() == "my notes"


def test_entries_survive_a_kill(tmp_path):
    program = (
        "import sys\nfrom pathlib import Path\nfrom simfl.journal import *\n"
        "from simfl.callbacks import TreeRecord\n"
        "j = Journal(Path(sys.argv[1]))\n"
        "for n in range(10**6):\n"
        " j.append(Scored(record=TreeRecord(round=n,builder='a',train={},validation={},bytes=0,seconds=0)))\n"
        " print(n, flush=True)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", program, tmp_path / "journal"], stdout=subprocess.PIPE)
    told = [int(process.stdout.readline()) for _ in range(20)][-1]
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    kept = [e.record.round for e in Journal(tmp_path / "journal").entries]
    assert kept == list(range(len(kept)))
    assert len(kept) > told


def test_missed_trees_are_counted_per_party():
    def grew(number, *absent):
        return Grew(round=number, turn=number, builders=["a"], absent=list(absent), adopted=[], trees=[])

    assert missed_trees([grew(0), grew(1, "b"), entry(1), grew(2, "b", "c")]) == {"b": [1, 2], "c": [2]}
