"""What a party keeps for a resume: the secret that opens what was decided, and what is behind its own noise."""

import pytest

from simfl import messages as msg
from simfl.errors import FileError, PrivacyError, ProtocolError
from simfl.hub.joint import open_joint_journal
from simfl.party import Session
from simfl.party.kept_keys import read_keys, write_keys
from tests.unsafe import Killed, Unsafe
from tests.wire import Recorder, grow_together, joint_sessions, model_bits, parties, sessions

STUDY = {"n_trees": 6, "max_depth": 3, "random_state": 5, "learning_rate": 0.4, "min_group": 3}


@pytest.fixture(autouse=True, scope="module")
def little_noise():
    """On counts: what is tested here is not about them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("simfl.joint.setting.COUNT_EPSILON", 0.5)
        yield


SIZES = (60, 50, 40)
MASKED = STUDY | {"masked": True}
OTHER = b"another secret".ljust(32)
AFTER = 25  # questions: by then cut points and a first batch are decided


class Liar(Session):
    """A party that gives the others another secret than the one that it has."""

    given = OTHER

    def _agree_on_secret(self, message, keys):
        return msg.SealedSecret(sealed={other: keys.seal(other, self.given) for other in keys.pairs})


def lying(handlers, given):
    """The same parties, the first of which lies."""
    first, *others = handlers
    liar = Liar(first.party, folder=first.folder)
    liar.private, liar.given = first.private, given
    return [liar, *others]


def killed(folder, after=AFTER):
    """A training that ends half way, as its parties and its hub have kept it."""
    journal = open_joint_journal(folder / "journal")
    with pytest.raises(Killed):
        grow_together(Unsafe(joint_sessions(parties(*SIZES), None, folder), after), journal, **MASKED)
    journal.close()


def resumed(folder, handlers):
    journal = open_joint_journal(folder / "journal")
    try:
        return grow_together(Recorder(handlers), journal, **MASKED)[1]
    finally:
        journal.close()


def kept(folder):
    return {path.parent.name: path.read_bytes() for path in folder.glob("*/together.key")}


@pytest.fixture(scope="module")
def whole():
    """The model of a training that nobody disturbed."""
    return model_bits(grow_together(Recorder(joint_sessions(parties(*SIZES))), **STUDY)[1])


# --- the parties' secret ---------------------------------------------------------------------------------------------


def test_a_party_with_another_secret_is_named_and_costs_nobody_the_right_one(tmp_path, whole):
    killed(tmp_path)
    before = kept(tmp_path)
    with pytest.raises(PrivacyError, match=r"Party 'p1' .*another secret from 'p0' than it has kept of this run"):
        resumed(tmp_path, lying(joint_sessions(parties(*SIZES), None, tmp_path), OTHER))
    assert kept(tmp_path) == before
    assert model_bits(resumed(tmp_path, joint_sessions(parties(*SIZES), None, tmp_path))) == whole


@pytest.mark.parametrize("size", [0, 31, 33, 64])
def test_a_secret_of_another_size_is_refused_with_its_sender(tmp_path, size):
    killed(tmp_path)
    before = kept(tmp_path)
    with pytest.raises(ProtocolError, match=f"'p0' sealed a secret of {size} bytes for 'p1', where 32 belong"):
        resumed(tmp_path, lying(joint_sessions(parties(*SIZES), None, tmp_path), bytes(size)))
    assert kept(tmp_path) == before


def test_what_a_refused_secret_replaced_is_used_again(tmp_path):
    killed(tmp_path)
    second = joint_sessions(parties(*SIZES), None, tmp_path)[1]
    right = second.secret
    first, _, third = joint_sessions(parties(*SIZES), None, tmp_path)
    with pytest.raises(PrivacyError, match="another secret from 'p0'"):
        resumed(tmp_path, lying([first, second, third], OTHER))
    assert second.secret == right


def test_a_secret_under_which_nothing_was_decided_gives_way(tmp_path, whole):
    """An honest party that missed the start over: it has kept the secret of an exchange that came to nothing."""
    killed(tmp_path)
    secret, private = read_keys(tmp_path / "p2")
    write_keys(tmp_path / "p2", OTHER, private)
    assert model_bits(resumed(tmp_path, joint_sessions(parties(*SIZES), None, tmp_path))) == whole
    assert read_keys(tmp_path / "p2") == (secret, private)


# --- what is behind a party's noise ----------------------------------------------------------------------------------


def addends(folder, **study):
    """All numbers that the parties send in one job, from the same start. What they draw is really drawn."""
    seen = Recorder(sessions(parties(*SIZES), folder=folder))
    grow_together(seen, **study)
    return [(party, reply.step, reply.parts) for party, _, reply in seen.log if isinstance(reply, msg.Addend)]


def test_a_job_that_is_started_again_has_the_same_noise_where_nothing_is_masked(tmp_path):
    one, other = tmp_path / "one", tmp_path / "other"
    one.mkdir(), other.mkdir()
    first = addends(one, masked=False, **STUDY)
    assert addends(one, masked=False, **STUDY) == first
    assert addends(other, masked=False, **STUDY) != first
    assert [read_keys(one / name)[0] for name in ("p0", "p1", "p2")] == [None] * 3  # no secret where none is needed


def test_keys_of_an_earlier_version_are_read(tmp_path):
    (tmp_path / "together.key").write_bytes(OTHER + bytes(32))
    (tmp_path / "together.key").chmod(0o600)
    assert read_keys(tmp_path) == (OTHER, bytes(32))


@pytest.mark.parametrize("size", [0, 16, 63, 65])
def test_keys_of_another_size_are_damaged(tmp_path, size):
    (tmp_path / "together.key").write_bytes(bytes(size))
    (tmp_path / "together.key").chmod(0o600)
    with pytest.raises(FileError, match="damaged"):
        read_keys(tmp_path)
