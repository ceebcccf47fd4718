import numpy as np
import pytest

from benchmarks import audit, audited
from benchmarks.pages import Page
from simfl.audit.audit import audit as attack


@pytest.mark.parametrize("name", audit.NAMES)
def test_every_table_of_the_page_can_be_attacked(name, shared_data):
    for file in {"a9a": ["a9a_train_X.npz"], "bank": ["bank-full.csv"]}.get(name, []):
        shared_data(file)
    X, y, told = audit.table(name)
    few = np.random.default_rng(0).permutation(len(y))[:300]
    rows = X.iloc[few] if hasattr(X, "iloc") else X[few]
    found = attack(rows, y[few], matching="blind", attacks=["rows_from_trees"], advise=False, **told)
    assert found.n_rows == 300
    assert found.findings
    assert all(0 <= finding.success <= 1 for finding in found.findings)


def entry(mode, success, roles=("hub",), excess=(0.1, 0.2)):
    finding = {"attack": "rows_from_codes", "title": "t", "roles": list(roles), "measure": "m", "success": success}
    finding |= {"success_interval": [0, 1], "guess": 0.5, "excess": success - 0.5, "excess_interval": list(excess)}
    return {"data": "bank", "mode": mode, "findings": [finding | {"n": 9, "sentence": "s"}]}


def test_a_row_has_the_mean_of_the_seeds_and_their_widest_interval():
    seeds = [entry("shared", 0.6), entry("shared", 0.8, excess=(-0.1, 0.15))]
    (row,) = audited.rows_of(seeds, "mode", {"rows_from_codes": "rows"})
    assert row == {"data": "bank", "attack": "rows", "by": "hub", "case": "shared"} | {
        "success": 0.7, "guess": 0.5, "excess": 0.2, "low": -0.1, "high": 0.2
    }  # fmt: skip


def test_roles_with_the_same_figures_share_a_row():
    rows = audited.rows_of([entry("shared", 0.6, ("hub", "builder"))], "mode", {"rows_from_codes": "rows"})
    assert [row["by"] for row in rows] == ["hub, builder"]


def test_the_verdict_names_the_attacks_that_are_clearly_above_guessing():
    found = [entry("shared", 0.7, excess=(0.06, 0.3)), entry("blind", 0.52, excess=(-0.01, 0.05))]
    page = Page("t", "c", measured="now")
    rows = audited.rows_of(found, "mode", {"rows_from_codes": "Rows"})
    audited.say_verdict(page, rows, ["shared", "blind"])
    audited.say_excess(page, rows, ["shared", "blind"])
    assert "- **shared**: 1 of 1 attacks: rows (+20.0)." in page.text
    assert "- **blind**: 0 of 1 attacks." in page.text
    assert "| Rows | hub | **+20.0** | +2.0 |" in page.text
