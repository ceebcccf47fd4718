"""Parties of one process open the model at the same moment. msgspec works out a type when it is first used."""

import subprocess
import sys

import simfl

SCRIPT = """
import sys, threading
from simfl.model import from_bytes
sys.setswitchinterval(1e-6)
data, start = open(sys.argv[1], "rb").read(), threading.Barrier(8)
def go():
    start.wait()
    from_bytes(data, "a model")
threads = [threading.Thread(target=go) for _ in range(8)]
for step in (threading.Thread.start, threading.Thread.join):
    for thread in threads:
        step(thread)
"""


def test_the_first_models_of_a_process_may_be_opened_at_once(tmp_path):
    rows = [[float(i)] for i in range(20)]
    simfl.train([simfl.Party("a", rows, [0, 1] * 10)], n_trees=2, callbacks=[]).save(tmp_path / "m.ubj")
    for _ in range(2):
        done = subprocess.run([sys.executable, "-c", SCRIPT, tmp_path / "m.ubj"], capture_output=True, check=False)
        assert (done.returncode, done.stderr) == (0, b"")
