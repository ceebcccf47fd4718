"""A small `make chaos`: the hub is killed, then everything, and the model comes out the same."""

import pytest

pytest.importorskip("nvflare")

from benchmarks.chaos import PARTIES, chaos


def test_kills_change_nothing(tmp_path):
    result = chaos(tmp_path, kills=2, trees=20, seed=3, targets=("hub", "everything"), rows=3000)
    assert [kill.what for kill in result["kills"]] == ["hub", "everything"]
    assert result["identical"]
    assert result["models"] == 2 + len(PARTIES)  # the submitter's and the hub's too
    assert result["left"] == []
