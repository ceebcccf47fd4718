"""Cut points that all parties agree on, from noisy counts: nearly the quantiles of the pooled rows."""

import numpy as np
import pytest
from scipy import sparse

from simfl.joint.agreement import Agreed, Agreement
from simfl.joint.cuts import ALL_POINTS, Cuts, Grid, choose
from simfl.joint.setting import Setting
from simfl.params import train_params

NAMES = ("north", "south", "west")


def agreed(tables: list[np.ndarray], n_levels: list[int], secret: bytes = b"s") -> list[Agreed]:
    parties = [Agreement(X, n_levels, NAMES, secret + name.encode()) for X, name in zip(tables, NAMES, strict=True)]
    while not parties[0].finished:
        total = [sum(words) for words in zip(*(party.contribution() for party in parties), strict=True)]
        for party in parties:
            party.apply(party.read(total))
    assert len({party.digest() for party in parties}) == 1
    return [party.agreed for party in parties]


def tables(values: np.ndarray) -> list[np.ndarray]:
    X = values.astype(np.float32)[:, None]
    return [X[i::3] for i in range(3)]


def rows_per_bin(values: np.ndarray) -> np.ndarray:
    points = agreed(tables(values), [0])[0].cuts(64, 30).points[0]
    return np.bincount(np.searchsorted(points, values.astype(np.float32), side="right"), minlength=len(points) + 1)


@pytest.mark.parametrize("shape", ["normal", "two far towns", "heavy tails"])
def test_points_are_near_quantiles_wherever_the_rows_are(shape):
    rng = np.random.default_rng(0)
    values = {
        "normal": rng.normal(size=9000),
        "two far towns": np.append(rng.normal(-122.4, 0.05, 6000), rng.normal(-118.2, 0.05, 3000)),
        "heavy tails": rng.standard_cauchy(9000),
    }[shape]
    rows = rows_per_bin(values)
    assert len(rows) > 50  # the aim is 64
    assert rows.max() < 4 * 9000 / 64


def test_between_two_neighbouring_numbers_there_is_one_point_or_few():
    empty = []
    for seed in range(5):
        rows = rows_per_bin(np.random.default_rng(seed).integers(0, 8, 6000))
        assert (rows > 0).sum() == 8
        empty.append((rows == 0).sum())
    assert np.mean(empty) <= 6  # noise; without the correction of noisy counts it was dozens


def test_all_parties_agree_on_the_same_counts_and_another_secret_gives_other_noise():
    own = tables(np.random.default_rng(0).normal(size=600))
    first, *others = agreed(own, [0])
    assert all((other.counts == first.counts).all() for other in others)
    (again, *_), (other, *_) = agreed(own, [0]), agreed(own, [0], secret=b"t")
    assert (again.counts == first.counts).all()
    assert len(other.counts) != len(first.counts) or (other.counts != first.counts).any()


def test_a_column_of_missing_values_a_constant_one_and_a_category_have_no_points():
    rng = np.random.default_rng(0)
    X = np.column_stack([np.full(90, np.nan), np.ones(90), rng.integers(0, 3, 90)]).astype(np.float32)
    cuts = agreed([X[i::3] for i in range(3)], [0, 0, 3])[0].cuts(256, 1)
    assert [len(points) for points in cuts.points] == [0, 0, 0]
    assert cuts.has_missing.tolist() == [True, False, False]


# --- wide tables -----------------------------------------------------------------------------------------------------


def words(n_rows=900, n_columns=6000, seed=0):
    """Text: a few words are in many rows, most in a few."""
    rng = np.random.default_rng(seed)
    share = 0.5 / np.arange(1, n_columns + 1)
    parts = [rng.choice(n_rows, max(int(n_rows * s), 1), replace=False) for s in share]
    column = np.repeat(np.arange(n_columns), [len(part) for part in parts])
    row = np.concatenate(parts)
    return sparse.csr_matrix((rng.random(len(row)).astype(np.float32), (row, column)), (n_rows, n_columns))


def test_a_word_of_few_texts_is_not_divided_and_costs_two_cells():
    X = words()
    known = np.diff(X.tocsc().indptr)
    found = agreed([X[i::3] for i in range(3)], [0] * X.shape[1])[0]
    assert (np.diff(found.grid.start)[known < 16] == 2).all()
    assert found.grid.start[-1] < 2**15  # 2**20 when every word had its own grid
    cuts = found.cuts(256, 30)
    usable = np.array([len(points) for points in cuts.points]) + cuts.has_missing > 0
    assert usable[known < 10].mean() < 0.02  # counts have noise
    assert usable[known > 50].all()
    assert found.cuts(256, 1).has_missing[known < 10].all()  # without a least group even they may be told apart


def test_many_columns_share_the_cut_points():
    n = 2000
    grid = Grid(tuple(np.arange(300, dtype=np.float32) for _ in range(n)), np.zeros(n, np.int32))
    total = np.full(grid.start[-1], 100)
    most = max(len(points) for points in choose(grid, total, 256, 1).points)
    assert n * most <= ALL_POINTS
    assert most > 0.9 * ALL_POINTS / n


def test_more_columns_than_usual_are_asked_about_more_often():
    def setting(n):
        cuts = Cuts((np.arange(3, dtype=np.float32),) * n, np.zeros(n, np.int32), np.zeros(n, bool))
        return Setting(train_params(recipe="joint"), cuts, 1, 1000, NAMES, 0.25)

    assert [setting(n).n_cuts(10**6) for n in (28, 256, 511, 1300, 20_000)] == [24, 24, 24, 120, 192]
    assert [setting(n).n_cuts(1) for n in (28, 1300, 20_000)] == [8, 40, 64]
