"""A study whose trees may split on the party, with real endpoints."""

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("nvflare")

import simfl
from simfl.deploy import run as runs
from simfl.errors import DataError
from tests.deploy.one_process import open_federation
from tests.deploy.studies import PARTIES


@pytest.mark.parametrize("recipe", ["similar", "joint"])
def test_every_party_gets_a_model_that_knows_the_parties(tmp_path, monkeypatch, recipe):
    def change(text):
        chosen = f'[parameters]\nparty_column = true\nrecipe = "{recipe}"'
        return text.replace("rematch = 10\n", "").replace("[parameters]", chosen)

    federation = open_federation(tmp_path, monkeypatch, 8, 120, change)
    folder = runs.run_study(federation.study, out=tmp_path / "run")
    model = simfl.load(folder / "model.ubj")
    assert model.schema.party.levels == tuple(sorted(PARTIES))
    for name in PARTIES:
        [path] = (federation.kits / name).glob("runs/*/model.ubj")
        assert path.read_bytes() == (folder / "model.ubj").read_bytes()
    table = pd.read_csv(tmp_path / f"{PARTIES[0]}.csv")
    own = model.at(PARTIES[0]).predict_proba(table)
    np.testing.assert_array_equal(own, model.predict_proba(table.assign(party=PARTIES[0])))
    with pytest.raises(DataError, match="had no part"):
        model.at("stranger")
