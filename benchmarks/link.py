"""Trees over a slow link: a hub and three parties as processes, whose connections pass through a proxy that delays.

    python -m benchmarks.link

Every byte of a party waits for half of the round trip in each direction. A lost segment is modelled as TCP shows it:
all that follows waits for 200 ms more. (The kernel's own emulation, `tc netem`, is not everywhere.)
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import statistics
import tempfile
import threading
import time
from pathlib import Path

from benchmarks.chaos import PARTIES, write_study
from simfl.deploy import run as runs
from simfl.deploy.processes import LocalProcesses, free_port
from simfl.deploy.study import read_study

SEGMENT, RETRANSMIT = 1448, 0.2  # bytes; seconds


class SlowLink(threading.Thread):
    """Passes connections on to a port, late."""

    def __init__(self, target: int, delay: float, loss: float) -> None:
        super().__init__(daemon=True)
        self.port, self.target, self.delay, self.loss = free_port(), target, delay, loss
        self._dice = random.Random(0)
        self.start()

    def run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._pass_on, "localhost", self.port)
        await server.serve_forever()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection("localhost", self.target)
        except OSError:
            writer.close()
            return
        await asyncio.gather(self._pump(reader, far_writer), self._pump(far_reader, writer))

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        waiting: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        sending = asyncio.create_task(self._send(waiting, writer))
        with contextlib.suppress(ConnectionError):  # a process that ended
            while data := await reader.read(65536):
                lost = sum(self._dice.random() < self.loss for _ in range(-(-len(data) // SEGMENT)))
                await waiting.put((time.monotonic() + self.delay + RETRANSMIT * lost, data))
        await waiting.put((0.0, b""))
        await sending

    async def _send(self, waiting: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter) -> None:
        while True:
            due, data = await waiting.get()
            if not data:
                writer.close()
                return
            await asyncio.sleep(max(due - time.monotonic(), 0.0))
            writer.write(data)
            await writer.drain()


def seconds_per_tree(recipe: str, round_trip: float, loss: float, n_trees: int) -> float:
    """Train over such links; the median of all trees, with those of a batch spread evenly."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        study_path = write_study(folder, n_trees, 1000, patience=60)
        own = "\nrematch = 0" if recipe == "similar" else ""
        text = study_path.read_text().replace("\nrematch = 10", f'\nrecipe = "{recipe}"{own}')
        study_path.write_text(text)
        shared = folder / "shared.toml"
        shared.write_text("\n".join(line for line in text.split("\n") if "data =" not in line))
        local = LocalProcesses(read_study(study_path), folder, folder / "kits", approved=shared)
        for party in PARTIES:
            link = SlowLink(local.engine.port, round_trip / 2, loss)
            config = local.kits[party] / "startup" / "fed_client.json"
            config.write_text(config.read_text().replace(str(local.engine.port), str(link.port)))
        found: list[float] = []
        listener = runs.Listener(tree=lambda record, connected: found.append(record.seconds))
        with local:
            runs.run_study(shared, kit=local.kits["submitter"], out=folder / "run", listener=listener)
        return statistics.median(found[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trees", type=int, default=48)
    parser.add_argument("--recipes", nargs="+", default=["similar", "joint"])
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    for recipe in options.recipes:
        for round_trip, loss in ((0.0, 0.0), (0.1, 0.0), (0.1, 0.01)):
            found = seconds_per_tree(recipe, round_trip, loss, options.trees)
            print(f"{recipe}: {1000 * round_trip:.0f} ms, {loss:.0%} loss: {found:.3f} s per tree", flush=True)


if __name__ == "__main__":
    main()
