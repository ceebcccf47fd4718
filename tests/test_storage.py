"""A file is written whole or not at all; a journal keeps whole entries, whatever happens to its file."""

import logging
import os
import signal
import stat
import subprocess
import sys

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from simfl.errors import FileError
from simfl.storage import Journal, append_private, in_use, write_atomically


class Event(msgspec.Struct, frozen=True, tag=True):
    number: int
    text: str = "a tree was grown"


def events(n):
    return [Event(number) for number in range(n)]


def written(path, n=5):
    journal = Journal(Event, path)
    for event in events(n):
        journal.append(event)
    journal.close()
    return path.read_bytes()


def test_a_file_that_cannot_be_written_leaves_the_old_one(tmp_path):
    target = tmp_path / "model"
    write_atomically(target, b"old")
    (tmp_path / "model").chmod(0o600)
    with pytest.raises(FileError, match="cannot be written"):
        write_atomically(tmp_path / "no folder" / "model", b"new")
    assert target.read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_what_was_written_is_read_again(tmp_path):
    written(tmp_path / "journal")
    assert Journal(Event, tmp_path / "journal").entries == events(5)
    assert [path.name for path in tmp_path.iterdir()] == ["journal"]  # no copy of what is whole


def test_without_a_file_entries_are_in_memory():
    journal = Journal(Event)
    journal.append(Event(0))
    journal.close()
    assert journal.entries == events(1)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
@given(st.data())
def test_a_torn_tail_is_cut_off_and_writing_continues(tmp_path, data):
    path = tmp_path / "journal"
    path.unlink(missing_ok=True)
    whole = written(path)
    path.write_bytes(whole[: data.draw(st.integers(0, len(whole)))])
    journal = Journal(Event, path)
    kept = len(journal.entries)
    assert journal.entries == events(kept)
    journal.append(Event(99))
    journal.close()
    assert Journal(Event, path).entries == [*events(kept), Event(99)]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
@given(st.data())
def test_a_flipped_bit_cuts_the_journal_there_says_so_and_keeps_a_copy(tmp_path, caplog, data):
    path = tmp_path / "journal"
    for old in tmp_path.iterdir():
        old.unlink()
    whole = bytearray(written(path))
    at = data.draw(st.integers(16, len(whole) - 1))
    whole[at] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(whole)
    caplog.clear()
    with caplog.at_level(logging.WARNING, logger="simfl"):
        entries = Journal(Event, path).entries
    assert entries == events(len(entries))
    assert len(entries) < 5
    assert (tmp_path / "journal.damaged-1").read_bytes() == bytes(whole)
    assert f"whole up to entry {len(entries)}" in caplog.text
    assert "journal.damaged-1" in caplog.text


def test_a_tail_of_zeros_is_cut_off(tmp_path):
    path = tmp_path / "journal"
    whole = written(path)
    path.write_bytes(whole + bytes(64))  # after a power cut a file can have grown without its blocks
    assert Journal(Event, path).entries == events(5)
    assert path.read_bytes() == whole


def test_a_second_damage_does_not_overwrite_the_first_copy(tmp_path):
    path = tmp_path / "journal"
    whole = written(path)
    for n in (1, 2):
        path.write_bytes(whole[:-n])
        Journal(Event, path).close()
    assert (tmp_path / "journal.damaged-1").read_bytes() == whole[:-1]
    assert (tmp_path / "journal.damaged-2").read_bytes() == whole[:-2]


def test_another_file_is_left_as_it_is(tmp_path):
    (tmp_path / "journal").write_text("my notes")
    with pytest.raises(FileError, match="left as it is"):
        Journal(Event, tmp_path / "journal")
    assert (tmp_path / "journal").read_text() == "my notes"


def test_an_entry_of_another_kind_is_refused(tmp_path):
    class Other(msgspec.Struct, frozen=True, tag=True):
        word: str

    journal = Journal(Other, tmp_path / "journal")
    journal.append(Other("hello"))
    journal.close()
    with pytest.raises(FileError, match="another version"):
        Journal(Event, tmp_path / "journal")


def test_entries_survive_a_kill(tmp_path):
    program = (
        "import sys, msgspec\nfrom pathlib import Path\nfrom simfl.storage import Journal\n"
        "class Event(msgspec.Struct, frozen=True, tag=True):\n number: int\n text: str = 'a tree was grown'\n"
        "j = Journal(Event, Path(sys.argv[1]))\n"
        "for n in range(10**6):\n"
        " j.append(Event(n))\n"
        " print(n, flush=True)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", program, tmp_path / "journal"], stdout=subprocess.PIPE)
    said = [int(process.stdout.readline()) for _ in range(20)][-1]
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    kept = Journal(Event, tmp_path / "journal").entries
    assert kept == events(len(kept))
    assert len(kept) > said


def test_a_folder_has_many_users_or_one_that_is_alone(tmp_path):
    refused = pytest.raises(FileError, match="is in use by another process")
    with in_use(tmp_path), in_use(tmp_path), refused, in_use(tmp_path, alone=True):
        raise AssertionError
    with in_use(tmp_path, alone=True), pytest.raises(FileError, match="is in use"), in_use(tmp_path):
        raise AssertionError
    with in_use(tmp_path):
        pass


def test_what_is_appended_is_private_and_stays(tmp_path):
    for line in (b"one\n", b"two\n"):
        append_private(tmp_path / "record", line)
    assert (tmp_path / "record").read_bytes() == b"one\ntwo\n"
    assert stat.S_IMODE((tmp_path / "record").stat().st_mode) == 0o600
