"""Sums of a level as they are sent, and as the reader understands them."""

import numpy as np
import pytest

from simfl.joint import sending
from simfl.joint.batch import Batch
from simfl.joint.cuts import Cuts
from simfl.joint.setting import Setting
from simfl.params import train_params


@pytest.fixture
def batch():
    points = tuple(np.linspace(-1, 1, 40).astype(np.float32) for _ in range(3))
    none = np.empty(0, np.float32)
    cuts = Cuts((*points, none), np.array([0, 0, 0, 6], np.int32), has_missing=np.array([False, True, False, False]))
    params = train_params(recipe="joint", min_group=1)
    setting = Setting(params, cuts, 1, 4000, ("a", "b"), most_hessian=1.0)
    return Batch(setting, 7, np.full((2, 3), 4000.0), np.zeros((2, 3), np.int64), np.zeros((5, 4)))


def test_the_reader_finds_the_sums_of_all_cells_again(batch):
    level = batch.level
    assert set(level.feature) == {0, 1, 2, 3}
    cells = np.random.default_rng(0).integers(-50, 50, level.n_cells)
    of_node = np.zeros(level.n_nodes, np.int64)
    for node in range(level.n_nodes):  # all slots of a node have the same total
        slots = range(level.slot_start[node], level.slot_start[node + 1])
        of_node[node] = cells[level.cell_start[slots[0]] : level.cell_start[slots[0] + 1]].sum()
        for s in slots:
            own = cells[level.cell_start[s] : level.cell_start[s + 1]]
            own[-1] += of_node[node] - own.sum()
    sent = sending.sums(cells, of_node, batch.sent, None, 0).view(np.int32).astype(np.int64)
    G, H = batch._opened(sent, sent)
    assert (cells == G).all()
    assert (cells == H).all()


def test_noise_on_a_sum_moves_one_cut_of_a_number_and_no_other(batch):
    slot = int(np.flatnonzero((batch.level.feature == 0) & (np.diff(batch.level.cell_start) > 3))[0])
    first, last = batch.level.cell_start[slot], batch.level.cell_start[slot + 1]
    sent = np.zeros(batch.n_sent, np.int64)
    sent[np.flatnonzero(np.flatnonzero(batch.sent_cells) == first + 1)] = 9  # up to the second cut
    G, _ = batch._opened(sent, sent)
    assert np.cumsum(G[first:last]).tolist() == [0, 9, *[0] * (last - first - 2)]
