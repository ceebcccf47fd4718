import json

import pytest

from benchmarks import cells


def times(cell):
    """Leaves a mark whenever it really runs."""
    with open(cell["log"], "a") as file:
        file.write(f"{cell['value']}\n")
    if cell["value"] < 0:
        raise ValueError("no root of a negative number")
    return {"root": cell["value"] ** 0.5, "threads": cells.threads()}


@pytest.fixture
def store(tmp_path):
    return cells.Store(tmp_path / "runs" / "cells.jsonl")


def test_what_is_done_is_not_run_again_and_failures_are_told_and_tried_again(tmp_path, store):
    wanted = [{"value": v, "log": str(tmp_path / "log")} for v in (9, -1, 4, 9)]
    first = cells.run(wanted, times, store, "roots")
    assert [r.get("root") for r in first] == [3, None, 2, 3]  # in their order, the same cell once
    assert first[1] == {"failed": "ValueError: no root of a negative number"}
    assert first[0]["threads"] >= 1
    again = cells.run(wanted, times, cells.Store(store.path), "roots", workers=1)
    assert [r.get("root") for r in again] == [3, None, 2, 3]
    assert sorted((tmp_path / "log").read_text().split()) == ["-1", "-1", "4", "9"]


def test_a_line_that_was_cut_off_is_run_again(store):
    cell = {"value": 1}
    store.put(cell, {"root": 1})
    store.put({"value": 2}, {"root": 1.4})
    text = store.path.read_text()
    store.path.write_text(text[:-10])
    assert cells.Store(store.path).get(cell) == {"root": 1}
    assert cells.Store(store.path).get({"value": 2}) is None


def test_results_of_other_code_do_not_count(store, monkeypatch):
    ours, peers = {"method": "SimFL"}, {"method": "FedTree", "versions": "1.0.5"}
    store.put(ours, {"error": 0.1})
    store.put(peers, {"error": 0.2})
    monkeypatch.setattr(cells, "code", lambda: "another version")
    assert store.get(ours) is None
    assert store.get(peers) == {"error": 0.2}  # depends on its own version alone


def test_the_key_does_not_depend_on_the_order_of_settings():
    assert cells.key({"a": 1, "b": 2}) == cells.key({"b": 2, "a": 1})
    assert json.loads(cells.key({"a": 1}))["code"] == cells.code()
