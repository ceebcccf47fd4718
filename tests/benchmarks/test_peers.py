import json
import socket
import subprocess
import sys
import threading

import numpy as np
import pytest
import xgboost as xgb
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

import simfl
from benchmarks.pages import write_csv
from benchmarks.paper import training
from benchmarks.peers import exchange, measure, page
from benchmarks.peers.environments import FLOWER, Environment, NotInstallable
from benchmarks.peers.latency import Line, crossing
from benchmarks.peers.measure import BAGGING, CYCLIC, DEFAULT, DIVIDED, PAPER, PLUGIN_NAME
from benchmarks.peers.proxy import CallCounter, Proxy


@pytest.fixture
def table():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 5)).astype(np.float32)
    return X, (X[:, 0] + X[:, 1] ** 2 + rng.normal(size=400) > 1).astype(np.int64)


def task(folder, X, y, n_parties=2, trees=6):
    """A task in files, as the command writes it."""
    settings = {"trees": trees, "learning_rate": 0.3, "fedtree_bins": 32}
    settings["xgboost"] = {"objective": "binary:logistic", "max_depth": 3, "tree_method": "hist"}
    exchange.write_task(
        folder, [(X[i:300:n_parties], y[i:300:n_parties]) for i in range(n_parties)], (X[300:], y[300:]), settings
    )


# --- files -----------------------------------------------------------------------------------------------------------


def test_tables_go_through_files_unchanged(tmp_path, table):
    X, y = table
    X[X < 0] = 0
    for number, form in enumerate((X, sparse.csr_matrix(X))):
        exchange.write_table(tmp_path / f"{number}.npz", form, y)
        back, labels = exchange.read_table(tmp_path / f"{number}.npz")
        assert sparse.issparse(back) == sparse.issparse(form)
        assert np.array_equal(back.toarray() if sparse.issparse(back) else back, X)
        assert np.array_equal(labels, y)


# --- counting --------------------------------------------------------------------------------------------------------


def frame(kind, payload):
    return len(payload).to_bytes(3, "big") + bytes([kind, 0]) + (1).to_bytes(4, "big") + payload


@given(st.lists(st.tuples(st.integers(0, 9), st.binary(max_size=40)), max_size=12), st.integers(1, 30))
def test_calls_are_counted_however_the_bytes_are_cut(frames, piece):
    data = bytes(24) + b"".join(frame(kind, payload) for kind, payload in frames)
    counter = CallCounter()
    for start in range(0, len(data), piece):
        counter.feed(data[start : start + piece])
    assert counter.calls == sum(kind == 1 for kind, _ in frames)


def test_the_relay_passes_everything_on_and_counts_both_ways():
    server = socket.create_server(("127.0.0.1", 0))

    def echo_twice():
        connection, _ = server.accept()
        with connection:
            data = connection.recv(1 << 16)
            connection.sendall(data + data)

    threading.Thread(target=echo_twice, daemon=True).start()
    proxy = Proxy(server.getsockname()[1])
    sent = bytes(24) + frame(1, b"question")
    with socket.create_connection(("127.0.0.1", proxy.port)) as client:
        client.sendall(sent)
        got = b""
        while len(got) < 2 * len(sent):
            got += client.recv(1 << 16)
    assert got == sent + sent
    assert (proxy.up, proxy.down, proxy.calls) == (len(sent), 2 * len(sent), 1)
    server.close()


# --- peers -----------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not xgb.build_info()["USE_FEDERATED"], reason="this XGBoost has no federated plugin")
def test_the_plugin_is_lossless_and_its_calls_and_bytes_are_counted(tmp_path, table):
    X, y = table
    X = np.round(X, 1)  # few values: the cuts of two parties are then those of all rows
    task(tmp_path, X, y)
    command = [sys.executable, measure.SCRIPTS / "drive_plugin.py", tmp_path, "plugin"]
    subprocess.run(command, check=True, timeout=300)
    answer = json.loads((tmp_path / "answer.json").read_text())
    params = {"objective": "binary:logistic", "max_depth": 3, "learning_rate": 0.3, "tree_method": "hist"}
    pooled = xgb.train(params, xgb.QuantileDMatrix(X[:300], y[:300]), 6)
    assert np.load(tmp_path / "probability.npy") == pytest.approx(pooled.predict(xgb.DMatrix(X[300:])), abs=1e-5)
    assert answer["trees"] == 6
    assert answer["messages"] > 2 * 3 * 6  # a call per level, at least
    assert answer["bytes"] > 6 * 2 * 2 * 8 * 5  # a histogram per tree, party and way, at least


@pytest.mark.skipif(not (FLOWER.folder / "installed").exists(), reason="run `python -m benchmarks.peers` once")
@pytest.mark.parametrize("kind", ["cyclic", "bagging"])
def test_flowers_strategies_aggregate_our_trees(tmp_path, table, kind):
    X, y = table
    task(tmp_path, X, y)
    answer = measure._answer(FLOWER, [measure.SCRIPTS / "drive_flower.py", tmp_path, kind], 120, tmp_path)
    p = np.load(tmp_path / "probability.npy")
    assert answer["trees"] == 6
    assert answer["messages"] == (12 if kind == "cyclic" else 6)
    assert answer["bytes"] > 10_000
    assert training.scores(y[300:], p)["auc"] > 0.7


def test_a_peer_that_crashes_or_takes_too_long_is_told_with_its_last_words(tmp_path):
    ours = Environment("here", "1", ())
    crash = ["-c", "import sys; sys.exit('libntl.so.44: not found')"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Environment, "python", sys.executable)
        with pytest.raises(RuntimeError, match=r"ended with 1: libntl.so.44: not found"):
            measure._answer(ours, crash, 60, tmp_path)
        with pytest.raises(TimeoutError, match="not finished after 1 seconds"):
            measure._answer(ours, ["-c", "import time; time.sleep(9)"], 1, tmp_path)


def test_what_cannot_be_installed_says_why(tmp_path, monkeypatch):
    monkeypatch.setattr("benchmarks.peers.environments.FOLDER", tmp_path)
    missing = Environment("missing", "1", (str(tmp_path / "there-is-no-such.whl"),))
    with pytest.raises(NotInstallable, match=r"pip install .*there-is-no-such"):
        missing.make()


@pytest.mark.parametrize("method", [DEFAULT, PAPER, measure.SOLO, measure.ALL_IN])
def test_our_own_rows_have_every_column(table, monkeypatch, method):
    monkeypatch.setattr(training, "_data", lambda name: table)
    found = measure.measure(measure.cell(method, "a9a", 2, 0, 8))
    assert found["trees"] == 8
    assert found["rows"] == 300
    assert 0 < found["logloss"] < 0.7
    assert (found["messages"] > 8 * 4) == (method in measure.OURS)


# --- the page --------------------------------------------------------------------------------------------------------


def results(**losses):
    """One place; a text instead of a loss is a failure."""
    names = {"default": DEFAULT, "cyclic": CYCLIC, "bagging": BAGGING, "divided": DIVIDED, "paper": PAPER}
    names |= {"plugin": PLUGIN_NAME, "all_in": measure.ALL_IN, "joint": measure.JOINT}
    facts = {"critical_seconds": 1.0, "messages": 10, "bytes": 1000}
    return page.Results(
        [
            (
                {"data": "a9a", "parties": 2, "method": names[name], "trees": 5},
                {"failed": loss} if isinstance(loss, str) else facts | {"logloss": loss},
            )
            for name, loss in losses.items()
        ]
    )


@pytest.fixture
def named(monkeypatch):
    monkeypatch.setattr(page, "star", lambda data: data)


def test_the_verdict_counts_a_place_only_if_every_rival_is_beaten(named):
    rivals = {"cyclic": 0.3, "bagging": 0.4, "divided": 0.5, "paper": 0.35, "plugin": 0.2, "all_in": 0.2}
    head, joint = page.verdicts(results(default=0.25, **rivals))
    assert "at 1 of 1" in head
    assert "at 0 of 1" in joint  # it has no figure here
    head, place, _ = page.verdicts(results(default=0.32, **rivals))
    assert "at 0 of 1" in head
    assert place == f"a9a, 2 parties: not below {CYCLIC} (0.3000)"


def test_a_rival_without_a_figure_is_named_and_the_place_does_not_count(named):
    rivals = {"cyclic": "crashed", "bagging": 0.4, "divided": 0.5, "paper": 0.35, "plugin": "no wheel", "all_in": 0.2}
    head, place, _ = page.verdicts(results(default=0.25, **rivals))
    assert "at 0 of 1" in head
    assert place == f"a9a, 2 parties: not below {CYCLIC} (no figure)"


@pytest.mark.parametrize(
    ("joint", "all_in", "said"),
    [
        (0.19, 0.2, "at 1 of 1 places, at or below pooling's at 1 of 1"),
        (0.19, 0.18, "at 1 of 1 places, at or below pooling's at 0 of 1"),
        (0.25, 0.3, "at 0 of 1 places, at or below pooling's at 1 of 1"),
    ],
)
def test_joint_is_compared_with_all_who_keep_their_rows_and_with_pooling(named, joint, all_in, said):
    assert said in page.verdicts(results(default=0.22, plugin=0.2, joint=joint, all_in=all_in))[-1]


@given(*[st.floats(0.1, 100), st.integers(1, 5000)] * 2)
def test_two_lines_are_equal_where_they_cross(work, messages, other_work, other_messages):
    ours, theirs = Line(work, messages), Line(other_work, other_messages)
    at = crossing(ours, theirs)
    if at is not None:
        assert ours.seconds(at) == pytest.approx(theirs.seconds(at))
        assert (ours.seconds(at / 2) < theirs.seconds(at / 2)) != (ours.seconds(2 * at) < theirs.seconds(2 * at))


def test_a_failure_is_a_sentence_below_its_table(tmp_path, table, monkeypatch, named):
    monkeypatch.setattr(page.Page, "sources", lambda self, names: None)
    monkeypatch.setattr(training, "_data", lambda name: table)
    wanted = [measure.cell(m, "a9a", 2, 0, 8) for m in (DEFAULT, PAPER, measure.ALL_IN)]
    measured = [(c, measure.measure(c)) for c in wanted]
    measured.append((measure.cell(PLUGIN_NAME, "a9a", 2, 0, 8), {"failed": "ended with 1: no wheel"}))
    page.write(measured, tmp_path, "command", quick=True)
    text = (tmp_path / "peers.md").read_text()
    assert f"| {PLUGIN_NAME} |{' - |' * 7}" in text
    assert f"\n{PLUGIN_NAME}: ended with 1: no wheel.\n" in text
    assert (tmp_path / "peers-latency.png").exists()
    assert (tmp_path / "peers-logloss.png").exists()
    assert simfl.__version__ in text


def test_the_figures_of_an_earlier_page_are_found_in_its_csv(tmp_path):
    cell = measure.cell(measure.ALL_IN, "a9a", 2, 0, 200)
    failed = measure.cell(measure.FEDTREE_NAME, "a9a", 2, 0, 200)
    results = {"logloss": 0.25, "seconds": 1.5, "critical_seconds": None, "bytes": 0, "rows": 24421}
    write_csv(tmp_path / "peers.csv", [cell | results, failed | {"failed": "killed"}])
    found = page.earlier(tmp_path / "peers.csv")
    assert found[page.place(cell)] == {"logloss": 0.25, "seconds": 1.5, "bytes": 0, "rows": 24421}
    assert found[page.place(failed)] == {"failed": "killed"}
