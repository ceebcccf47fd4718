"""Small tables as files."""

import numpy as np


def write_two_tables(folder, names, n_rows=120):
    """A CSV file for each name, with two columns and a label."""
    rng = np.random.default_rng(0)
    for name in names:
        X = rng.normal(size=(n_rows, 2)).round(3)
        y = (X[:, 0] + 0.5 * rng.normal(size=n_rows) > 0).astype(int)
        np.savetxt(folder / f"{name}.csv", np.column_stack([X, y]), "%g", ",", header="x0,x1,y", comments="")
