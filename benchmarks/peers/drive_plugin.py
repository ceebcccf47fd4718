"""Runs in the environment of XGBoost's full wheel: its federated plugin, one process per party and a gRPC server.

    python drive_plugin.py TASK plugin

The parties reach the server through a relay that counts bytes and calls.
"""

import multiprocessing
import os
import resource
import socket
import sys
import time

import exchange
import numpy as np
import xgboost as xgb
import xgboost.federated
from proxy import Proxy


def serve(n, port):
    xgboost.federated.run_federated_server(n_workers=n, port=port)


def work(folder, rank, n, port, queue):
    """One party."""
    try:
        settings = exchange.read_settings(folder)
        X, y = exchange.read_table(f"{folder}/party-{rank}.npz")
        params = settings["xgboost"] | {"learning_rate": settings["learning_rate"], "nthread": 1}
        where = {
            "dmlc_communicator": "federated",
            "federated_server_address": f"127.0.0.1:{port}",
            "federated_world_size": n,
            "federated_rank": rank,
        }
        with xgb.collective.CommunicatorContext(**where):
            begun, before = time.perf_counter(), _cpu()
            rows = xgb.QuantileDMatrix(X, y, nthread=1)
            booster = xgb.train(params, rows, num_boost_round=settings["trees"])
            seconds, cpu = time.perf_counter() - begun, _cpu() - before
        raw = bytes(booster.save_raw("ubj")) if rank == 0 else b""
        queue.put({"rank": rank, "seconds": seconds, "cpu": cpu, "model": raw})
    except Exception as error:
        queue.put({"rank": rank, "failed": f"{type(error).__name__}: {error}"})
        raise


def _cpu():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def main(folder):
    n = exchange.read_settings(folder)["parties"]
    context = multiprocessing.get_context("spawn")
    port, queue = free_port(), context.Queue()
    server = context.Process(target=serve, args=(n, port), daemon=True)
    server.start()
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            break
        except OSError:
            if not server.is_alive():
                sys.exit("The federated server ended before a party came.")
            time.sleep(0.1)
    proxy = Proxy(port)
    workers = [context.Process(target=work, args=(folder, i, n, proxy.port, queue)) for i in range(n)]
    for worker in workers:
        worker.start()
    answers = [queue.get() for _ in workers]
    failed = [a["failed"] for a in answers if "failed" in a]
    if failed:
        for worker in workers:
            worker.terminate()
        server.terminate()
        sys.exit(failed[0])
    for worker in workers:
        worker.join()
    server.join(10)
    server.terminate()
    booster = xgb.Booster()
    booster.load_model(bytearray(next(a["model"] for a in answers if a["rank"] == 0)))
    X, _ = exchange.read_table(f"{folder}/test.npz")
    exchange.write_answer(
        folder,
        booster.predict(xgb.DMatrix(X)),
        seconds=float(np.max([a["seconds"] for a in answers])),
        critical_seconds=float(np.max([a["cpu"] for a in answers])),
        bytes=proxy.up + proxy.down,
        messages=2 * proxy.calls,
        trees=booster.num_boosted_rounds(),
    )


if __name__ == "__main__":
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    main(sys.argv[1])
