import numpy as np
import pytest

from benchmarks import audit
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
