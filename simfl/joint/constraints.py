"""Which columns a node may be asked about: sampled ones, and those that may be used together on a path."""

import numpy as np

from simfl.arrays import AnyArray, Mask
from simfl.joint.candidates import Nodes
from simfl.params import Params
from simfl.preprocessing.splitmix import mix, row_tokens

PURPOSE = 2  # of a key: other draws with the same seed are different ones


def allowed_columns(params: Params, nodes: Nodes, places: AnyArray, n_columns: int, seed: int) -> Mask:
    """(nodes, columns); one row for all where nothing is left out."""
    groups, share = params.interaction_constraints, params.colsample_bytree
    if not groups and share >= 1:
        return np.ones((1, n_columns), bool)
    allowed = np.ones((len(places), n_columns), bool)
    for row, place in zip(allowed, places, strict=True):
        if share < 1:
            row &= _sample(share, n_columns, _mixed(PURPOSE, seed, int(nodes.tree[place])))
        if groups and (path := _path(nodes, int(place))):
            together = [set(group) for group in groups if set(path) <= set(group)]
            row &= np.isin(np.arange(n_columns), list(set(path).union(*together)))
    return allowed


def _path(nodes: Nodes, place: int) -> list[int]:
    """The columns above a node."""
    path = []
    while (place := int(nodes.parent[place])) >= 0:
        path.append(int(nodes.feature[place]))
    return path


def _sample(share: float, n_columns: int, key: int) -> Mask:
    """The columns of a tree, at least one."""
    sample = np.zeros(n_columns, bool)
    order = np.argsort(row_tokens(key, n_columns), kind="stable")
    sample[order[: max(1, int(share * n_columns))]] = True
    return sample


def _mixed(*parts: int) -> int:
    key = 0
    for part in parts:
        key = int(mix(np.uint64(key ^ part)))
    return key
