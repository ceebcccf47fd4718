"""Runs in Flower's environment: cyclic or bagging federated XGBoost, aggregated by Flower's own strategies.

    python drive_flower.py TASK cyclic|bagging|bagging-divided

The strategies configure every round and aggregate every reply; the clients do what Flower's XGBoost example does. All
of it in one process: Flower's engine would add seconds per message, which is not what is compared here. Bytes are those
of Flower's messages as they would be sent.
"""

import random
import sys

import exchange
import numpy as np
import xgboost as xgb
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.common.serde import recorddict_to_proto
from flwr.serverapp.strategy import FedXgbBagging, FedXgbCyclic
from flwr.supercore.task_identity import TaskIdentity


class Nodes:
    """As much of Flower's grid as a strategy asks for."""

    def __init__(self, n):
        self.ids = list(range(1, n + 1))

    def get_node_ids(self):
        """All are there."""
        return self.ids


def n_bytes(message):
    """The size of a message's content on the wire."""
    return len(recorddict_to_proto(message.content).SerializeToString())


def reply_of(message, rows, params, keep_all):
    """What a client does: one more tree on its own rows. It sends the whole model, or that tree alone."""
    model = message.content["arrays"]["0"].numpy().tobytes()
    if model:
        booster = xgb.Booster(params)
        booster.load_model(bytearray(model))
        booster.update(rows, booster.num_boosted_rounds())
        n = booster.num_boosted_rounds()
        booster = booster if keep_all else booster[n - 1 : n]
    else:
        booster = xgb.train(params, rows, num_boost_round=1)
    raw = np.frombuffer(bytes(booster.save_raw("json")), dtype=np.uint8)
    metrics = MetricRecord({"num-examples": rows.num_row()})
    return Message(content=RecordDict({"arrays": ArrayRecord([raw]), "metrics": metrics}), reply_to=message)


def main(folder, kind):
    settings = exchange.read_settings(folder)
    parties = [xgb.DMatrix(X, y, nthread=1) for X, y in exchange.read_parties(folder)]
    rate = settings["learning_rate"] / (len(parties) if kind == "bagging-divided" else 1)
    params = settings["xgboost"] | {"learning_rate": rate, "nthread": 1}
    n = len(parties)
    cyclic = kind == "cyclic"
    strategy = (FedXgbCyclic if cyclic else FedXgbBagging)(min_available_nodes=n)
    rounds = settings["trees"] if cyclic else -(-settings["trees"] // n)
    arrays = ArrayRecord([np.frombuffer(b"", dtype=np.uint8)])
    TaskIdentity.run_id = TaskIdentity.task_id = TaskIdentity.node_id = 1  # what its engine sets
    random.seed(0)  # the strategies draw the order of the nodes
    server, critical, sent, total = exchange.Clock(), 0.0, 0, 0.0
    for number in range(1, rounds + 1):
        with server:
            messages = list(strategy.configure_train(number, arrays, ConfigRecord(), Nodes(n)))
        replies, slowest = [], 0.0
        for message in messages:
            with exchange.Clock() as client:
                rows = parties[message.metadata.dst_node_id - 1]
                replies.append(reply_of(message, rows, params, cyclic))
            slowest, total = max(slowest, client.cpu), total + client.seconds
        sent += sum(n_bytes(m) for m in messages) + sum(n_bytes(m) for m in replies)
        critical += slowest
        with server:
            arrays, _ = strategy.aggregate_train(number, replies)
    booster = xgb.Booster()
    booster.load_model(bytearray(arrays["0"].numpy().tobytes()))
    X, _ = exchange.read_table(f"{folder}/test.npz")
    exchange.write_answer(
        folder,
        booster.predict(xgb.DMatrix(X)),
        seconds=total + server.seconds,
        critical_seconds=critical + server.cpu,
        bytes=sent,
        messages=2 * rounds,
        trees=len(booster.get_dump()),
    )


if __name__ == "__main__":
    main(*sys.argv[1:3])
