"""Events: what is told, where it is written, and what of a training is worth a line."""

import json
import logging
import subprocess
import sys

import pytest

from simfl.callbacks import logger
from simfl.deploy.course import Course, Stage, read_stage, read_stages
from simfl.deploy.logs import FLARE_LOG, LONGEST, Event, Listening, Log, Reader, tell
from simfl.deploy.status import Place
from simfl.errors import StudyError
from simfl.storage import InUseError, is_used, owned
from tests.deploy.waiting import LONG

PROGRAM = """
import logging, sys
from simfl.deploy.logs import mark_events, tell
mark_events()
print("chatter", flush=True)
tell("connected", "connected to the hub")
try:
    1 / 0
except ZeroDivisionError:
    logging.getLogger("simfl").exception("could not be done")
sys.stdout.write("half a line"); sys.stdout.flush()
tell("ended", "x" * 10_000)
"""


def test_events_and_the_other_lines_of_a_process_are_kept_apart(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    found = []
    Reader(process.stdout, tmp_path, found.append).join(LONG)
    assert [event.event for event in found] == ["connected", "error", "ended"]
    assert [event.text for event in found[:2]] == ["connected to the hub", "could not be done"]
    assert len(found[2].text) == LONGEST
    rest = (tmp_path / "flare.txt").read_text()
    assert rest.startswith("chatter\n")
    assert "ZeroDivisionError" in rest
    assert rest.endswith("half a line\n")


def test_a_log_rotates_and_is_for_its_owner_alone(tmp_path, monkeypatch):
    monkeypatch.setattr("simfl.deploy.logs.LARGEST", 1000)
    log = Log(tmp_path, "north", log_format="json")
    for n in range(40):
        log(Event(time=n, level="info", event="tree", text=f"tree {n}"))
    log.close()
    files = sorted(tmp_path.glob("log.txt*"))
    assert len(files) > 3
    assert all(file.stat().st_size <= 1000 and file.stat().st_mode & 0o077 == 0 for file in files)
    assert json.loads((tmp_path / "log.txt").read_text().splitlines()[-1])["text"] == "tree 39"


@pytest.fixture
def told():
    """What the logger is told."""
    found = []
    handler = Listening(found.append)
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield found
    logger.removeHandler(handler)


def test_of_many_trees_the_first_every_tenth_and_the_last_are_told_and_every_change_of_those_present(told, tmp_path):
    course = Course(tmp_path, Stage(run="r", study="s", stage="training", n_trees=25))
    for n in range(1, 26):
        course.rounds(n, absent=["south"] if 13 <= n <= 14 else [])
    lines = [event.text.partition(",")[0] for event in told]
    assert lines == [f"tree {n} of 25" for n in (1, 10, 13, 15, 20, 25)]
    assert "without south" in told[2].text
    course.rounds(25)  # told again by a resumed job
    assert len(told) == 6


def test_a_training_whose_process_is_gone_is_interrupted(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    with owned(folder):
        course = Course(folder, Stage(run="r", study="s", stage="training", n_trees=9))
        assert read_stage(folder).stage == "training"
    assert [stage.stage for stage in read_stages(tmp_path)] == ["interrupted"]
    course.end("finished", "done")
    assert read_stage(folder).stage == "finished"


def test_a_folder_is_owned_by_one_process_which_is_named(tmp_path):
    holding = (
        f"import time; from pathlib import Path; from simfl.storage import owned\nwith owned(Path({str(tmp_path)!r})):"
    )
    program = f"{holding}\n    print('now', flush=True)\n    time.sleep(600)"
    other = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    other.stdout.readline()
    with pytest.raises(InUseError, match=f"by the process {other.pid}. Stop that one first: kill {other.pid}"):
        owned(tmp_path, patience=0.0).__enter__()
    assert is_used(tmp_path)
    other.kill()
    other.wait()
    with owned(tmp_path):
        pass
    assert not list(tmp_path.iterdir())


def test_what_is_told_on_several_lines_is_one_line(told):
    tell("refused", "the parties do not fit.\n- north: a\n- south: b")
    assert told[0].text == "the parties do not fit. - north: a - south: b"


def test_a_warning_in_a_process_of_flares_is_an_event_and_told_once(tmp_path):
    program = "import warnings; from simfl.deploy.logs import mark_events\n"
    program += "from simfl.errors import FewRowsWarning, PrivacyWarning\n"
    program += "mark_events(); mark_events()\nfor _ in 'ab':\n    warnings.warn('100% seen', PrivacyWarning)\n"
    program += "warnings.warn('100% seen', PrivacyWarning); warnings.warn('old', FutureWarning)\n"
    program += "warnings.warn('few rows', FewRowsWarning)"
    done = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    found = []
    Reader(done.stdout, tmp_path, found.append).join()
    done.wait()
    assert [(event.level, event.event, event.text) for event in found] == [
        ("info", "privacy", "100% seen"),  # approved with the study: no alarm
        ("warning", "warning", "few rows"),
    ]
    assert "FutureWarning: old" in (tmp_path / FLARE_LOG).read_text()


@pytest.mark.parametrize(
    "program",
    [
        "import simfl.deploy.connections",  # a process that lasts
        "from simfl.cli import app; import simfl.deploy.metrics, simfl.deploy.processes",  # hub start, party start
        "from pathlib import Path; from simfl.deploy.party_file import read_party_file as r; r(Path('party.toml'))",
        "from simfl.cli import app; import simfl.deploy.status, nvflare.fuel.flare_api.flare_api",  # asked often
        "from pathlib import Path; from simfl.deploy.status import Place; assert Place.at(Path()).name == 'north'",
    ],
)
def test_what_lasts_or_is_asked_often_loads_no_tables_and_no_trees(program, tmp_path):
    pytest.importorskip("nvflare")
    (tmp_path / "party.toml").write_text('name = "north"\ndata = "north.csv"\nkit = "kit"\n')
    heavy = ("numpy", "pandas", "pyarrow", "xgboost", "numba", "sklearn")
    program = f"{program}\nimport sys; print([name for name in {heavy} if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert found.stdout == "[]\n"


def test_a_party_file_with_a_key_that_does_not_exist_is_named_by_status(tmp_path):
    (tmp_path / "party.toml").write_text('name = "north"\ndata = "north.csv"\nkti = "kit"\n')
    with pytest.raises(StudyError, match=r"there is no key 'kti'\. Did you mean 'kit'"):
        Place.at(tmp_path)
