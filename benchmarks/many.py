"""What grows with the number of parties: messages, bytes and processor time per tree, at the hub and at one party.

    python -m benchmarks.many

Parties of 1,000 rows in one process, with masked sums as between machines. The hub's time is the processor time of this
process outside of the parties' answers, and a party's the time inside, divided by the parties. No network is in it.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

import simfl
from simfl import hub
from simfl import messages as msg
from simfl.params import prepare_params, train_params
from simfl.party import Session
from simfl.privacy import boxes
from simfl.transport.local import LocalTransport

ROWS, FEATURES, TREES = 1000, 12, 16


class Timed(LocalTransport):
    """Counts the processor time of the parties' answers."""

    answering = 0.0

    def ask_all(self, messages: Mapping[str, msg.Request]) -> dict[str, msg.Reply]:
        begun = time.process_time()
        try:
            return super().ask_all(messages)
        finally:
            self.answering += time.process_time() - begun


@dataclass(frozen=True)
class Measured:
    """Per tree; `largest` is the most that the hub receives at once."""

    messages: float  # to one party
    kilobytes: float  # to and from one party
    hub_ms: float
    party_ms: float
    largest_kilobytes: float
    stage_1: float  # seconds of processor time of all parties and the hub, once


def measure(n: int, recipe: str, n_trees: int) -> Measured:
    """Train over n parties."""
    transport = Timed([Session(party) for party in tables(n)])
    first = prepare_params(recipe=recipe, masked=True, random_state=0)
    never = {"rematch": 0} if recipe == "similar" else {}
    second = train_params(recipe=recipe, masked=True, n_trees=n_trees, random_state=0, **never)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        begun = time.process_time()
        prepared = hub.prepare(transport, first)
        stage_1 = time.process_time() - begun
        before, hops, total = transport.answering, len(transport.traffic.hops), transport.traffic.total
        begun = time.process_time()
        if recipe == "joint":
            receiver = msg.SignedKey(key=boxes.public_half(boxes.new_key()))
            hub.train_together(transport, prepared, second, hub.JointOrder(receiver))
        else:
            hub.train(transport, prepared, second)
    spent, answering = time.process_time() - begun, transport.answering - before
    sent: dict[str, int] = {}
    for party in transport.parties:
        for kind, size in transport.traffic.sent[party].items():
            sent[kind] = sent.get(kind, 0) + size
    asked = len(transport.traffic.hops) - hops
    return Measured(
        messages=asked / n / n_trees,
        kilobytes=(transport.traffic.total - total) / n / n_trees / 1000,
        hub_ms=1000 * (spent - answering) / n_trees,
        party_ms=1000 * answering / n / n_trees,
        largest_kilobytes=max(sent.get(kind, 0) for kind in ("RowSums", "LeafSums", "Addend")) / n_trees / 1000,
        stage_1=stage_1,
    )


def tables(n: int) -> list[simfl.Party]:
    """Parties with the same number of rows of the same kind."""
    rng = np.random.default_rng(0)
    found = []
    for number in range(n):
        X = rng.normal(size=(ROWS, FEATURES)).astype(np.float32)
        y = (X[:, 0] + X[:, 1] * X[:, 2] + 0.5 * rng.normal(size=ROWS) > 0).astype(int)
        found.append(simfl.Party(f"p{number}", X, y))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parties", type=int, nargs="+", default=[5, 10, 20, 50])
    parser.add_argument("--trees", type=int, default=TREES)
    options = parser.parse_args()
    print("| recipe | parties | messages per party | kB per party | kB to the hub | hub ms | party ms | stage 1, s |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    for recipe in ("similar", "joint"):
        measure(2, recipe, 2)  # compiles
        for n in options.parties:
            found = measure(n, recipe, options.trees)
            print(
                f"| {recipe} | {n} | {found.messages:.2f} | {found.kilobytes:.0f} | {found.largest_kilobytes:.0f} | "
                f"{found.hub_ms:.1f} | {found.party_ms:.1f} | {found.stage_1:.1f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
