"""What a refusal gives away: a hub that asks until it is not refused must not learn a party's own numbers."""

import numpy as np
import pytest
from msgspec.structs import replace

from simfl import messages as msg
from simfl import wire
from simfl.errors import PrivacyError
from tests.adversary.lying import halted, refuses


def answers(session, question):
    try:
        session.handle(question)
    except PrivacyError:
        return False
    return True


@pytest.mark.parametrize("matching", ["blind", "shared"])
def test_a_partys_own_spread_is_not_found_by_trying(matching):
    """Its rows spread at most 100 times as widely as the scale: where that begins to hold tells how widely."""
    session, question = halted(msg.Hash, matching=matching)
    own, claimed = float(session.split.training.X[:, 0].std()), 1e-3
    deviation = wire.unpack(question.deviation, "f8", (6,)).copy()
    while claimed < 1:
        claimed *= 1.01
        deviation[0] = claimed
        if answers(session, replace(question, deviation=wire.pack(deviation.copy()))):
            break
    assert not np.isclose(100 * claimed, own, rtol=0.02)


def test_a_refusal_names_no_number_of_this_partys_rows():
    session, question = halted(msg.Hash, matching="shared")
    with pytest.raises(PrivacyError, match="too narrow for this party's rows") as refused:
        session.handle(replace(question, bucket_width=1e-4))
    assert "spread" not in refused.value.public


def test_one_seed_serves_a_run():
    """Else a second job could have rows hashed in other directions, although the study names its random_state."""
    session, question = halted(msg.Hash, matching="shared")
    refuses(session, replace(question, seed=6), "one seed")
    session, question = halted(msg.Start)
    refuses(session, replace(question, seed=6), "one seed")
    session, question = halted(msg.Start, random_state=None)
    refuses(session, replace(question, seed=question.seed + 1), "one seed")
