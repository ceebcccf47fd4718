"""Runs in FedTree's environment: its horizontal mode without encryption, parties simulated in one process.

    python drive_fedtree.py TASK fedtree

FedTree cuts the rows into parties itself, in their order and into equal parts: the rows come sorted by party, so its
parties are ours up to unequal sizes. Its standalone mode sends nothing; bytes and messages are those that its protocol
would need: per level one histogram from every party and one answer, with 8 bytes per bin.
"""

import os
import sys

import exchange
import numpy as np
from fedtree import FLClassifier
from scipy import sparse


def main(folder):
    settings = exchange.read_settings(folder)
    n, depth, trees = settings["parties"], settings["xgboost"]["max_depth"], settings["trees"]
    tables = exchange.read_parties(folder)
    X = sparse.vstack([sparse.csr_matrix(X) for X, _ in tables]).tocsr()
    X.indices, X.indptr = X.indices.astype(np.int32), X.indptr.astype(np.int32)  # it crashes with 64 bits
    y = np.concatenate([y for _, y in tables])
    model = FLClassifier(
        n_trees=trees,
        mode="horizontal",
        n_parties=n,
        num_class=2,
        objective="binary:logistic",
        max_depth=depth,
        learning_rate=settings["learning_rate"],
        privacy_tech="none",
        max_num_bin=settings["fedtree_bins"],
        gamma=0,
        lambda_ft=1,
        min_child_weight=1,
        verbose=0,
    )
    with exchange.Clock() as clock:
        model.fit(X, y)
    test, _ = exchange.read_table(f"{folder}/test.npz")
    p = model.predict_proba(sparse.csr_matrix(test))[:, 1]  # predict() returns zeros only
    histogram = 8 * X.shape[1] * (settings["fedtree_bins"] + 1)
    per_tree = n * sum(2**level for level in range(depth)) * histogram
    exchange.write_answer(
        folder,
        p,
        seconds=clock.seconds,
        critical_seconds=None,
        bytes=per_tree * trees,
        messages=2 * depth * trees,
        trees=trees,
    )


if __name__ == "__main__":
    main(sys.argv[1])
    sys.stdout.flush()
    os._exit(0)  # its library may crash while it is unloaded, after the work is done
