"""Which columns a node may be asked about: sampled ones, and those that may be used together on a path."""

import numpy as np

from simfl.arrays import AnyArray, Mask
from simfl.joint.candidates import Nodes
from simfl.params import TrainParams
from simfl.preprocessing.splitmix import mix, row_tokens


def allowed_columns(params: TrainParams, nodes: Nodes, places: AnyArray, n_columns: int, seed: int) -> Mask:
    """(nodes, columns); one row for all where nothing is left out."""
    groups = params.interaction_constraints
    shares = (params.colsample_bytree, params.colsample_bylevel, params.colsample_bynode)
    if not groups and min(shares) >= 1:
        return np.ones((1, n_columns), bool)
    allowed = np.ones((len(places), n_columns), bool)
    for row, place in zip(allowed, places, strict=True):
        path = _path(nodes, int(place))
        _sample(row, shares, (seed, int(nodes.tree[place]), len(path), int(nodes.number[place])))
        if groups and path:
            together = [set(group) for group in groups if set(path) <= set(group)]
            row &= np.isin(np.arange(n_columns), list(set(path).union(*together)))
    return allowed


def _path(nodes: Nodes, place: int) -> list[int]:
    """The columns above a node."""
    path = []
    while (place := int(nodes.parent[place])) >= 0:
        path.append(int(nodes.feature[place]))
    return path


def _sample(row: Mask, shares: tuple[float, float, float], key: tuple[int, int, int, int]) -> None:
    """Per tree, of these per level, of these per node, as XGBoost does it. At least one column is left (by each)."""
    for n_keys, share in zip((2, 3, 4), shares, strict=True):
        if share < 1:
            columns = np.flatnonzero(row)
            tokens = row_tokens(_mixed(n_keys, *key[:n_keys]), len(row))[columns]
            kept = columns[np.argsort(tokens, kind="stable")[: max(1, int(share * len(columns)))]]
            row[:] = False
            row[kept] = True


def _mixed(*parts: int) -> int:
    key = 0
    for part in parts:
        key = int(mix(np.uint64(key ^ part)))
    return key
