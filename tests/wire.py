"""Parties and a transport that keeps what passes, for the tests that look at messages."""

import numpy as np

import simfl
from simfl import wire
from simfl.transport.local import LocalTransport


def rows(n, seed, d=6):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d)).astype(np.float32)
    return X, (X[:, 0] + X[:, 1] * X[:, 2] + 0.5 * rng.normal(size=n) > 0).astype(int)


def parties(*sizes):
    return [simfl.Party(f"p{i}", *rows(n, i)) for i, n in enumerate(sizes)]


class Wire(LocalTransport):
    """Keeps every message, both ways, as the hub sees it."""

    def __init__(self, members, n_jobs=1):
        super().__init__(members, n_jobs)
        self.log = []

    def _carry(self, party, message, *rest):
        reply = super()._carry(party, message, *rest)
        self.log.append((party, message, reply))
        return reply

    def replies(self, kind):
        return {party: reply for party, _, reply in self.log if isinstance(reply, kind)}

    @property
    def bytes(self):
        return b"".join(wire.encode(m) for _, *both in self.log for m in both)
