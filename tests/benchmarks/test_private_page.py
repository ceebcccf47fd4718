"""The page of private trainings: what it is made of, what it declares, and what its figures say."""

import json

import pytest

from benchmarks import private
from benchmarks.declared import STUDIES, divided, origin
from benchmarks.pages import RESULTS


def entries(losses: dict[float, float], solo: float) -> list[private.Entry]:
    one = {"data": "ijcnn1", "seed": 0, "auc": 0.9}
    together = [one | {"method": "joint", "epsilon": e, "colluding": 3, "logloss": loss} for e, loss in losses.items()]
    return [one | {"method": "SOLO", "logloss": solo}, one | {"method": "ALL-IN", "logloss": 0.05}, *together]


@pytest.mark.parametrize(
    ("losses", "said"),
    [
        ({0.1: 0.3, 1.0: 0.2, 10.0: 0.1}, "from 1 on"),
        ({0.1: 0.2, 1.0: 0.3, 10.0: 0.1}, "from 10 on"),  # once better is not better from there on
        ({0.1: 0.2, 1.0: 0.1, 10.0: 0.1}, "from 0.1 on"),
        ({0.1: 0.3, 1.0: 0.3, 10.0: 0.3}, "at none"),
    ],
)
def test_from_where_on_it_is_worth_it(losses: dict[float, float], said: str) -> None:
    assert private.worth(entries(losses, solo=0.25), "ijcnn1", 3) == said


def test_an_aim_that_is_missed_is_called_so() -> None:
    rows = private.targets(entries({1.0: 0.1451, 10.0: 0.0949}, solo=0.2))
    assert [row[2:] for row in rows] == [["0.0949", "met"], ["0.1451", "**missed**"]]


@pytest.mark.parametrize("name", list(STUDIES))
def test_what_is_declared_fits_the_table(name: str) -> None:
    """A level that nobody declared would count as missing; rows and class shares are right within a tenth."""
    if not all(path.exists() for path in origin(name).files):
        pytest.skip("set SIMFL_DATA to the folder of the data sets")
    rows, study = divided(name, seed=0), STUDIES[name]
    assert list(rows.X.columns) == study.schema.names
    assert study.rows == pytest.approx(len(rows.y), rel=0.1)
    assert study.base_score == pytest.approx(rows.y.mean(), rel=0.1)
    for column in study.schema.columns:
        if column.kind == "category":
            assert set(rows.X[column.name]) | set(rows.X_test[column.name]) <= set(column.levels)


def test_the_page_is_what_its_figures_make() -> None:
    if not all(path.exists() for name in STUDIES for path in origin(name).files):
        pytest.skip("set SIMFL_DATA to the folder of the data sets")
    kept = (RESULTS / "private.md").read_text().split("\n\n")
    made = private.page(json.loads((RESULTS / "private.json").read_text())).text.split("\n\n")
    assert kept[2:] == made[2:]


def test_the_table_of_the_documentation_has_the_figures_that_were_measured():
    found = json.loads((RESULTS / "private.json").read_text())
    lines = (RESULTS.parent / "privacy.md").read_text().splitlines()
    at = lines.index("| | ALL-IN | SOLO | epsilon 10 | epsilon 1 | epsilon .1 |") + 2
    told = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[at : at + 6]]
    columns = [{"method": m} for m in ("ALL-IN", "SOLO")]
    columns += [{"method": "joint", "colluding": private.N_PARTIES - 1, "epsilon": e} for e in (10.0, 1.0, 0.1)]
    for name, *cells in told:
        metric = "auc" if name.endswith("AUC") else "logloss"
        means = [private.mean(found, metric, data=name.split(",")[0], **column) for column in columns]
        assert cells == [f"{mean:.3f}".lstrip("0") for mean in means], name
