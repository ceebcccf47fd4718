"""What became worse since the last commit, with known answers."""

import io
import itertools
import json
import shutil
import subprocess
import time

import pytest
from rich.console import Console

from benchmarks import bench, compare, quiet, repeats, search
from benchmarks.pages import RESULTS


def record(**figures):
    return {"training": [{"shape": "HIGGS-like", "rows": 100, "options": {"rematch": 0}} | figures]}


def verdict(before, now):
    (change,) = compare.changes(before, now)
    return change.verdict


@pytest.mark.parametrize(
    ("name", "before", "now", "expected"),
    [
        ("over_all_in", 1.0, 1.09, ""),  # within the tolerance of ratios
        ("over_all_in", 1.0, 1.2, "worse"),
        ("over_all_in", 1.0, 0.8, "better"),
        ("over_all_in", [1.0, 0.7, 1.3], [1.2, 1.1, 1.4], ""),  # the quartiles overlap
        ("over_all_in", [1.0, 0.9, 1.1], [1.4, 1.2, 1.6], "worse"),
        ("over_all_in", 1.0, [1.2, 0.9, 1.5], ""),  # once, now with quartiles
        ("seconds", 10.0, 12.0, ""),  # seconds have more room than ratios
        ("seconds", 10.0, 13.0, "worse"),
        ("cpu_seconds_per_tree", {"joint": 0.1}, {"joint": 0.12}, "worse"),
        ("bytes_per_tree", 1000, 1020, "worse"),  # bytes have hardly any
        ("64_logloss", 0.5, 0.503, "worse"),
        ("64_logloss", 0.5, 0.502, ""),
        ("extra_peak_over_data", 4.2, 2.9, "better"),
        ("pairs_per_second", {"simfl": 9e9}, {"simfl": 7e9}, "worse"),  # fewer is worse
        ("faster_by", {"faiss": [60.0, 59.0, 61.0]}, {"faiss": [70.0, 69.0, 71.0]}, "better"),
    ],
)
def test_a_figure_is_judged_by_its_kind_and_its_quartiles(name, before, now, expected):
    assert verdict(record(**{name: before}), record(**{name: now})) == expected


def test_what_was_measured_differently_is_not_compared():
    now = record(seconds=2.0)
    for other in ({"rows": 200}, {"options": {}}, {"trees": 40}):
        assert not compare.changes({"training": [record(seconds=1.0)["training"][0] | other]}, now)
    assert not compare.changes({"training-plain": record(seconds=1.0)["training"]}, now)


def test_what_was_measured_several_times_is_one_figure():
    several = {"joint-midsize": [{"rows": 5, "over_all_in": [m, m - 0.1, m + 0.1]} for m in (1.0, 3.0, 1.5)]}
    (figure,) = compare.figures(several).values()
    assert figure == pytest.approx((1.5, 0.9, 3.1))


def test_the_worst_comes_first_and_other_software_is_the_yardstick():
    before = record(seconds_per_tree={"simfl": 1.0, "all_in": 1.0}, bytes=100, turns=[1.0], paper_seconds=5)
    now = record(seconds_per_tree={"simfl": 3.0, "all_in": 2.0}, bytes=100, turns=[9.0], paper_seconds=9)
    found = compare.changes(before, now)
    assert [(c.place.name, c.factor, c.verdict) for c in found] == [
        ("seconds_per_tree.all_in", 2.0, "worse"),
        ("seconds_per_tree.simfl", 1.5, "worse"),
        ("bytes", 1.0, ""),
    ]
    told = compare.summary(found, {})
    assert "2 figures compared with the committed ones: 1 worse, 0 better" in told
    assert "2.00 times as long" in told


@pytest.mark.parametrize(
    ("name", "before", "now"),
    [
        ("seconds", 10.0, 20.0),
        ("seconds", [10.0, 9.0, 11.0], [20.0, 18.0, 22.0]),
        ("cpu_seconds_per_tree", {"joint": 0.1}, {"joint": 0.2}),
        ("pairs_per_second", {"simfl": 8e9}, {"simfl": 4e9}),
        ("overhead_ms", 40.0, 80.0),
    ],
)
def test_a_slow_machine_makes_no_time_of_ours_worse(name, before, now):
    def with_other_software(figure, seconds):
        return record(**{name: figure}) | {"growing": [{"rows": 1, "xgboost": seconds}]}

    def judged(others):
        found = compare.changes(with_other_software(before, 1.0), with_other_software(now, others))
        return next(change.verdict for change in found if change.kind.name != compare.YARDSTICK)

    assert judged(others=1.0) == "worse"
    assert judged(others=2.0) == ""
    assert judged(others=8.0) == "better"


def test_bytes_and_losses_are_not_the_machines():
    slow = {"growing": [{"rows": 1, "xgboost": 2.0}]}, {"growing": [{"rows": 1, "xgboost": 4.0}]}
    found = compare.changes(record(bytes=100, logloss=0.5) | slow[0], record(bytes=200, logloss=1.0) | slow[1])
    assert [(c.place.name, c.verdict) for c in found if c.kind.name != compare.YARDSTICK] == [
        ("bytes", "worse"),
        ("logloss", "worse"),
    ]


@pytest.mark.parametrize(
    ("name", "before", "now", "expected"),
    [
        ("overhead_ms", -2.0, 60.0, "worse"),
        ("overhead_ms", 60.0, -2.0, "better"),
        ("overhead_ms", -2.0, 3.0, ""),
        ("overhead_ms", [-2.0, -9.0, 30.0], [25.0, 20.0, 40.0], ""),
        ("identical", True, False, "worse"),
        ("identical", False, True, "better"),
        ("identical", True, True, ""),
        ("extra_peak_bytes", 0, 100, "worse"),
        ("extra_peak_bytes", 0, 0, ""),
    ],
)
def test_what_can_be_zero_or_below_is_judged_too(name, before, now, expected):
    assert verdict(record(**{name: before}), record(**{name: now})) == expected


def test_a_record_without_a_recipe_is_of_the_default_one():
    before = {"flare": [{"trees": 500, "flare": 20.0}]}
    now = {"flare": [{"trees": 500, "recipe": "similar", "flare": 40.0}, {"trees": 500, "recipe": "joint", "flare": 9}]}
    assert verdict(before, now) == "worse"
    assert compare.without_counterpart(before, now) == {"flare": (1, 0)}


def test_what_has_no_counterpart_is_told():
    kept = record(seconds=1.0, bytes=5) | {"search": [{"rows": 1, "seconds": 1.0}]}
    now = {"training": [record(seconds=1.0, bytes=5)["training"][0] | {"trees": 40}], "new": [{"bytes": 1}]}
    alone = compare.without_counterpart(kept, now)
    assert alone == {"new": (1, 0), "training": (2, 2)}, "what was not measured now is not missing"
    told = compare.summary(compare.changes(kept, now), alone)
    assert told.endswith("for want of a counterpart: new (1 new, 0 gone), training (2 new, 2 gone).")


def test_the_committed_record_is_compared_and_not_the_file_on_disk(tmp_path, monkeypatch):
    monkeypatch.setattr(compare, "ROOT", tmp_path)
    path = tmp_path / "docs" / "speed.json"
    assert compare.committed(path) == {}
    path.parent.mkdir()
    path.write_text('{"search": 1}')
    assert compare.committed(path) == {"search": 1}  # not a repository
    who = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
    for words in (["init", "-q"], ["add", "docs"], [*who, "commit", "-qm", "figures"]):
        subprocess.run([shutil.which("git"), *words], cwd=tmp_path, check=True)
    path.write_text('{"search": 2}')
    assert compare.committed(path) == {"search": 1}


def test_the_committed_figures_are_as_good_as_themselves():
    kept = json.loads((RESULTS / "speed.json").read_text())
    found = compare.changes(kept, kept)
    assert len(found) > 200
    assert {change.verdict for change in found} == {""}
    measurements = {change.place.measurement for change in found}
    assert measurements == set(kept) - {bench.MACHINE}


def test_both_sides_run_in_turn():
    ticks, done = itertools.count(), []
    works = {name: lambda name=name: done.append(name) or name.upper() for name in ("a", "b")}
    turns, results = repeats.in_turn(works, 3, lambda: float(next(ticks)))
    assert done == ["a", "b"] * 3
    assert turns.seconds == {"a": [1.0] * 3, "b": [1.0] * 3}
    assert results == {"a": "A", "b": "B"}
    assert turns.medians(0.5) == {"a": 0.5, "b": 0.5}


def test_a_ratio_is_the_median_of_the_turns_not_the_ratio_of_medians():
    turns = repeats.Turns({"ours": [1.0, 10.0, 30.0], "theirs": [1.0, 5.0, 10.0], "more": [0.0, 5.0, 10.0]})
    assert turns.over("ours", "theirs")[0] == 2.0
    assert turns.over("ours", "theirs", "more") == [1.0, 1.0, 1.25]


def test_the_search_tells_the_spread_of_its_ratios():
    found = search.compare("SUSY-like", 4096, k=3, repeats=3)
    assert set(found["faster_by"]) >= {"plain", "bare"}
    for middle, low, high in found["faster_by"].values():
        assert 0 < low <= middle <= high
    assert len(bench._search({"search": [found]})) == 1 + len(found["pairs_per_second"])
    assert search.comparison_table([found]).row_count == len(found["pairs_per_second"])


def test_the_processor_time_of_our_cores_is_read(tmp_path):
    stat = tmp_path / "stat"
    lines = ["cpu  9000 9 9 9 9 9 9 9 9 9", "cpu0 100 20 30 9999 8888 3 2 5 7 7", "cpu1 1 0 0 0 0 0 0 0 0 0", "intr 5"]
    stat.write_text("\n".join(lines))
    tick = quiet.os.sysconf("SC_CLK_TCK")
    assert quiet.busy_seconds(stat, [0]) * tick == 100 + 20 + 30 + 3 + 2 + 5
    assert quiet.busy_seconds(stat, [0, 1]) * tick == 161, "without the cores that others have"
    assert quiet.busy_seconds(stat, [2]) is None
    assert quiet.busy_seconds(tmp_path / "none") is None
    stat.write_text("nothing\n")
    assert quiet.busy_seconds(stat) is None


BURN = "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done"


@pytest.mark.parametrize("work", [BURN, f"({BURN}; echo) &"], ids=["child", "orphan"])
def test_own_work_is_not_that_of_others(work):
    """With output that is read, an orphan has ended, too."""
    before = quiet._ended()
    with quiet.watched() as machine:
        subprocess.run(["/bin/sh", "-c", work], check=True, stdout=subprocess.PIPE)
        time.sleep(0.2)
    assert quiet._ended() - before > 0.05
    assert len(machine["load"]) == 2
    assert machine["others"] <= quiet.cores() + 0.5


def test_busy_measurements_are_named_with_the_command_to_repeat_them():
    busy, calm = {"load": [9.0, 9.0], "others": 2.0}, {"load": [9.0, 1.0], "others": 0.01}
    told = quiet.advice_after({"search": busy, "growth": calm, "bins": busy})
    assert told.endswith("python -m benchmarks.bench --only search bins")
    assert "busy" in quiet.advice_before(1.5, 2)
    assert "--no-write" in quiet.advice_before(1.5, 2)


def test_how_busy_the_machine_was_is_kept_with_the_figures(tmp_path):
    (tmp_path / "search.json").write_text("[]")
    (tmp_path / "machine.json").write_text('{"search": {"load": [0.5, 1.25], "others": 0.25}}')
    record = tmp_path / "speed.json"
    record.write_text('{"growth": [], "machine": {"growth": {"load": [3, 4]}}}')
    found = bench.gather(tmp_path, record)
    rows = bench._machine(found)
    assert rows[1:] == [["`growth`", "3.0", "4.0", ""], ["`search`", "0.5", "1.2", "0.2"]]
    assert bench.measured(tmp_path, ["search", "growth"]) == {
        "search": [],
        "machine": {"search": found["machine"]["search"]},
    }


def test_the_growth_of_seconds_has_quartiles_where_it_was_measured_in_turns():
    sizes = [{"rows": n, "seconds": 1.0, "turns": [n / 100, n**2 / 10_000]} for n in (100, 200, 400)]
    (_, row) = bench._growth({"growth": sizes})
    assert row[-3:] == ["1.50", "1.25", "1.75"]
    once = [{"rows": n, "seconds": n / 100} for n in (100, 200)]
    assert bench._growth({"growth": once})[1][-1] == "1.00"


def test_what_became_worse_is_printed_with_before_now_and_ratio(monkeypatch):
    console = Console(width=200, file=io.StringIO())
    monkeypatch.setattr(compare, "committed", lambda path: record(seconds=1.0, bytes=100))
    now = record(seconds=4.0, bytes=100, peak_bytes=9) | {
        bench.MACHINE: {"training": {"load": [9.0, 9.0], "others": 2.0}}
    }
    bench.tell_changes(console, now, everything=False)
    told = console.file.getvalue()
    row = next(line for line in told.splitlines() if "HIGGS" in line)
    assert [cell.strip() for cell in row.split("│")[3:-1]] == ["seconds", "1", "4", "4.00", "worse"]
    assert "1 worse, 0 better" in told
    assert "--only training" in told
    assert "training (1 new, 0 gone)" in told
    assert "bytes" not in told
