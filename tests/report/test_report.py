"""The report as a reader meets it: in a browser, without a network."""

import html
import json
import re
import shutil
import threading
import urllib.error
import urllib.request

import msgspec
import numpy as np
import pandas as pd
import pytest

from simfl import partition
from simfl.callbacks import TreeRecord
from simfl.data.files import Dataset
from simfl.data.schema import Schema
from simfl.errors import FileError
from simfl.report import charts
from simfl.report import page as report
from simfl.report.figures import figures
from simfl.report.record import AuditResult, Curve, PartyFacts, Recorder, RunRecord, Score
from simfl.report.watch import serve
from simfl.simulate import simulation
from simfl.simulate.comparison import compare

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
PATIENCE = 180_000  # milliseconds: other tests may have the machine
STRANGE = "</script><img src=x onerror=alert(1)>"
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="No chromium here: apt-get install chromium")


def a_run(objective, names, title="A test"):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"ward": rng.choice(list("abc"), 240), "age": rng.normal(size=240), "n": rng.normal(size=240)})
    score = (frame["ward"] == "b") + frame["age"] + rng.normal(0, 0.3, 240)
    y = {
        "binary:logistic": (score > 0.5).astype(int),
        "multi:softprob": np.digitize(score, [0, 1]),
        "reg:squarederror": score,
    }[objective]
    data = Dataset(frame, np.asarray(y), Schema.propose(frame))
    parts = dict(zip(names, partition.balanced(240, len(names)), strict=True))
    simulated = simulation.set_up(data, parts, 0, stratify=objective != "reg:squarederror")
    params = {"n_trees": 8, "random_state": 0, "objective": objective, "n_jobs": 1}
    comparison = compare(simulated.parties, simulated.held_out, params, callbacks=[])
    return simulated.record(comparison, simulated.measured(comparison), title=title, began=0.0)


@pytest.fixture(scope="module")
def records():
    audit = [AuditResult(attack="reconstruction", value="12 %", meaning="rows found", passed=True)]
    binary = a_run("binary:logistic", ["north", "south", STRANGE], title=f"Party {STRANGE}")
    return {
        "binary": msgspec.structs.replace(binary, audit=audit, notes=["A note."]),
        "classes": a_run("multi:softprob", ["north", "south"]),
        "numbers": a_run("reg:squarederror", ["north", "south"]),
    }


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"], timeout=PATIENCE)
        yield browser
        browser.close()


@pytest.fixture
def opened(browser, records, tmp_path):
    """Open a run's page; what the browser complains about is collected."""
    pages = []

    def open_page(which, **options):
        records[which].save(tmp_path / which)
        path = report.write(tmp_path / which)
        page = browser.new_context(offline=True, **options).new_page()
        page.complaints = []
        page.on("console", lambda m: page.complaints.append(m.text) if m.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: page.complaints.append(str(error)))
        page.on("request", lambda r: None if r.url.startswith("file:") else page.complaints.append(r.url))
        page.goto(path.as_uri(), timeout=PATIENCE)
        page.wait_for_selector("html[data-drawn]", timeout=30_000)
        pages.append(page)
        return page

    yield open_page
    for page in pages:
        page.context.close()


@needs_chromium
@pytest.mark.parametrize(
    ("which", "scheme"), [("binary", "light"), ("binary", "dark"), ("classes", "light"), ("numbers", "light")]
)
def test_the_page_draws_every_chart_without_a_complaint(opened, records, which, scheme):
    page = opened(which, color_scheme=scheme)
    charts = page.locator(".chart").count()
    assert charts == sum(len(f.charts) for f in figures(records[which]))
    assert page.locator(".chart svg").count() == charts
    assert page.locator(".chart svg path, .chart svg rect").count() > 5 * charts
    assert page.complaints == []


@needs_chromium
@pytest.mark.parametrize("options", [{"color_scheme": "light"}, {"color_scheme": "dark"}], ids=["light", "dark"])
def test_the_page_passes_an_accessibility_check(opened, options):
    from axe_playwright_python.sync_playwright import Axe

    page = opened("binary", **options)
    page.evaluate("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
    found = Axe().run(page).response["violations"]
    assert [(v["id"], v["nodes"][0]["html"]) for v in found] == []


@needs_chromium
def test_the_page_fits_a_phone(opened):
    page = opened("binary", viewport={"width": 360, "height": 740})
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    widest = page.evaluate("Math.max(...[...document.querySelectorAll('.chart svg')].map((s) => s.clientWidth))")
    assert widest <= 360


@needs_chromium
@pytest.mark.parametrize("width", [360, 700, 1200])
def test_no_legend_is_cut_off(opened, width):
    page = opened("binary", viewport={"width": width, "height": 740})
    beyond = """[...document.querySelectorAll('.chart')].flatMap((chart) => {
        const box = chart.getBoundingClientRect();
        const labels = [...chart.querySelectorAll('.role-legend-label text')];
        return labels.map((label) => [label.textContent, label.getBoundingClientRect()]).map(([text, r]) =>
            [text, Math.max(r.right - box.right, box.left - r.left, box.top - r.top, r.bottom - box.bottom)]);
    })"""
    labels = page.evaluate(beyond)
    assert len(labels) > 10
    assert [label for label in labels if label[1] > 0] == []


@needs_chromium
def test_the_page_prints_in_light_colours(opened):
    page = opened("binary", color_scheme="dark")
    page.emulate_media(media="print")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert len(page.pdf()) > 20_000


@needs_chromium
def test_a_chart_tells_its_numbers_when_hovered(opened, records):
    page = opened("binary")
    page.locator("#gain-0 svg .mark-symbol path").first.hover()
    told = page.locator("#vg-tooltip-element").inner_text()
    first = next(g for g in records["binary"].gains if g.adjusted and g.metric == "logloss")
    assert f"{first.alone:.4f}" in told


@needs_chromium
def test_the_numbers_on_the_page_are_those_of_the_run(opened, records):
    page, run = opened("binary"), records["binary"]
    assert page.evaluate("JSON.parse(document.getElementById('run').textContent)") == msgspec.to_builtins(run)
    drawn = page.evaluate("views['gain-0'].view.data('source_1') || views['gain-0'].view.data('source_0')")
    on_own = [g for g in run.gains if g.metric == "logloss" and g.adjusted]
    assert [(row["party"], row["gain"], row["low"], row["high"]) for row in drawn if "gain" in row] == [
        (g.party, g.gain, g.low, g.high) for g in on_own
    ]
    cells = page.locator("#gain tbody tr").evaluate_all(
        "rows => rows.map((r) => [...r.cells].map((c) => c.textContent))"
    )
    assert [row[5] for row in cells] == [f"{g.gain:+.4f}" for g in run.gains]


def test_names_cannot_become_markup(records):
    page = report.render(records["binary"])
    assert "<img src=x" not in page
    assert html.escape(STRANGE) in page


def test_the_page_asks_for_nothing_from_outside(records):
    page = report.render(records["binary"])
    own = re.sub(r"<script>.*?</script>", "", page, flags=re.S)
    assert not re.search(r"(src|href)=.?https?:", own)
    assert "connect-src &#39;none&#39;" in page or "connect-src 'none'" in page


def test_the_headline_counts_the_parties_that_gain(records):
    run = records["binary"]
    own = [g for g in run.gains if g.metric == "logloss" and g.adjusted]
    better = [msgspec.structs.replace(g, gain=0.1, low=0.05, high=0.2) if g == own[0] else g for g in run.gains]
    sure = sum(g.low > 0 for g in own[1:]) + 1
    assert f"Worth it for {sure} of 3 parties" in report.headline(msgspec.structs.replace(run, gains=better))[0]
    worse = [msgspec.structs.replace(g, gain=-1.0, low=-2.0, high=-0.5) for g in run.gains]
    said = report.headline(msgspec.structs.replace(run, gains=worse))
    assert "Worth it for 0 of 3 parties; not worth it for north (-1.000), south" in said[0]
    assert "stay out" in said[1]
    assert said[-1].endswith("worse for 3.")


def test_the_page_says_how_every_method_stopped(records):
    page = report.render(records["binary"])
    assert "All methods stop by the same rule: 20% of each party" in page
    assert html.escape(report.headline(records["binary"])[0]) in page


def test_a_run_that_knows_little_has_a_page_too():
    bare = RunRecord(
        title="bare",
        status="running",
        started="2030-01-01T00:00:00+00:00",
        seconds=1.0,
        objective="binary:logistic",
        n_trees=10,
        parties=[PartyFacts(name="north", n_rows=3, dropped="no answer for 60 s, round 4")],
        history=[TreeRecord(round=0, builder="north", train={"logloss": 0.5}, validation={}, bytes=3, seconds=0.1)],
    )
    page = report.render(bare)
    assert "1 of 10 rounds are done" in page
    assert "dropped out" in page
    assert [f.name for f in figures(bare)] == ["progress"]


# --- the record ---


def test_a_record_survives_its_file(records, tmp_path):
    for name, run in records.items():
        run.save(tmp_path / name)
        assert RunRecord.load(tmp_path / name) == run
        assert RunRecord.load(tmp_path / name / "run.json") == run


def test_what_is_not_a_run_is_told(tmp_path):
    with pytest.raises(FileError, match="There is no run at"):
        RunRecord.load(tmp_path)
    (tmp_path / "run.json").write_text('{"title": 3}')
    with pytest.raises(FileError, match="is not the record of a run"):
        RunRecord.load(tmp_path)
    newer = {"title": "", "status": "finished", "started": "", "seconds": 1, "objective": "", "n_trees": 1}
    (tmp_path / "run.json").write_text(json.dumps(newer | {"parties": [], "format": 99}))
    with pytest.raises(FileError, match="newer version"):
        RunRecord.load(tmp_path)


# --- watching ---


def test_a_training_can_be_watched(halves, tmp_path):
    import simfl

    seen = []

    class Look(simfl.Callback):
        def after_tree(self, record):
            run = RunRecord.load(tmp_path / "run")
            seen.append((run.status, len(run.history)))

    recorder = Recorder(tmp_path / "run", "watched", [PartyFacts(name="a", n_rows=30)])
    fit = simfl.train(halves, n_trees=4, random_state=0, callbacks=[recorder, Look()])
    assert seen[0] == ("running", 1)
    done = RunRecord.load(tmp_path / "run")
    assert (done.status, done.history) == ("finished", fit.history)


@pytest.fixture
def served(records, tmp_path):
    records["numbers"].save(tmp_path)
    with serve(tmp_path, 0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://localhost:{server.server_address[1]}"
        server.shutdown()


def test_the_server_gives_the_page_the_record_and_nothing_else(served, records):
    page = urllib.request.urlopen(f"{served}/").read().decode()
    assert 'fetch("version"' in page
    assert (
        msgspec.json.decode(urllib.request.urlopen(f"{served}/run.json").read(), type=RunRecord) == records["numbers"]
    )
    before = urllib.request.urlopen(f"{served}/version").read()
    assert before.isdigit()
    for path in ("/../pyproject.toml", "/etc/passwd", "/report.html"):
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"{served}{path}")


def test_the_server_answers_this_machine_only(served):
    request = urllib.request.Request(f"{served}/run.json", headers={"Host": "evil.example"})
    with pytest.raises(urllib.error.HTTPError, match="403"):
        urllib.request.urlopen(request)


@needs_chromium
def test_the_watched_page_follows_the_run(browser, records, tmp_path):
    run = msgspec.structs.replace(records["numbers"], title="before")
    run.save(tmp_path)
    with serve(tmp_path, 0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        page = browser.new_page()
        page.goto(f"http://localhost:{server.server_address[1]}/", timeout=PATIENCE)
        page.wait_for_timeout(2500)
        msgspec.structs.replace(run, title="after").save(tmp_path)
        page.wait_for_function("document.querySelector('h1').textContent !== 'before'", timeout=PATIENCE)
        assert page.text_content("h1") == "after"
        (tmp_path / "run.json").rename(tmp_path / "elsewhere")
        page.wait_for_function("document.body.textContent.includes('There is no run at')", timeout=PATIENCE)
        (tmp_path / "elsewhere").rename(tmp_path / "run.json")
        page.wait_for_function("document.querySelector('h1')", timeout=PATIENCE)
        page.close()
        server.shutdown()


def test_the_server_says_when_the_run_is_gone_and_shows_it_when_it_is_back(served, records, tmp_path):
    (tmp_path / "run.json").unlink()
    for path in ("", "version", "run.json"):
        with pytest.raises(urllib.error.HTTPError, match="503") as gone:
            urllib.request.urlopen(f"{served}/{path}")
        assert str(tmp_path) in gone.value.read().decode()
    records["numbers"].save(tmp_path)
    assert "<h1>A test</h1>" in urllib.request.urlopen(f"{served}/").read().decode()


def test_the_record_itself_can_be_watched(records, tmp_path):
    path = records["numbers"].save(tmp_path)
    with serve(path, 0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        assert urllib.request.urlopen(f"http://localhost:{server.server_address[1]}/version").read().isdigit()
        server.shutdown()


def test_a_run_that_has_not_begun_is_waited_for(records, tmp_path):
    with serve(tmp_path / "later", 0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://localhost:{server.server_address[1]}/"
        with pytest.raises(urllib.error.HTTPError, match="503") as waiting:
            urllib.request.urlopen(address)
        assert waiting.value.headers["Refresh"] == "2"
        records["numbers"].save(tmp_path / "later")
        assert "<h1>A test</h1>" in urllib.request.urlopen(address).read().decode()
        server.shutdown()


def test_a_running_training_says_its_pace_the_time_left_and_the_bytes(records):
    rounds = [
        TreeRecord(round=i, builder="a", train={"logloss": 0.5}, validation={}, bytes=50_000, seconds=1.0)
        for i in range(10)
    ]
    run = msgspec.structs.replace(records["numbers"], status="running", history=rounds, n_trees=100, seconds=20.0)
    assert report.headline(run) == [
        "The training is running: 10 of 100 rounds are done, 1 s each: at most 90 s are left.",
        "500.0 KB were sent so far.",
    ]


def test_a_run_between_machines_has_a_result_on_top(records):
    rounds = [
        TreeRecord(round=i, builder="a", train={"logloss": 0.6}, validation={"logloss": v}, bytes=1, seconds=1.0)
        for i, v in enumerate((0.6, 0.5, 0.4))
    ]
    run = msgspec.structs.replace(records["numbers"], gains=[], history=rounds, n_trees=3, notes=["No rows here."])
    first, second = report.headline(run)
    assert first.endswith("in 3 rounds: log loss on validation rows of all parties went from 0.6000 to 0.4000.")
    assert second == "No rows here."


def test_many_parties_alone_are_a_band_with_a_middle():
    lines = [
        Curve(method="SOLO", party=p, rows=None, metric="logloss", trees=[1, 3], values=[1.0, v])
        for p, v in zip("abc", (0.4, 0.5, 0.7), strict=True)
    ]
    spec = charts.learning(lines, "log loss", "on all rows", logarithmic=False)
    drawn = [row for layer in spec["layer"] for row in layer["data"]["values"]]
    end = next(row for row in drawn if row["round"] == 3 and "low" in row)
    assert (end["low"], end["value"], end["high"]) == (0.4, 0.5, 0.7)
    assert {row["model"] for row in drawn if "model" in row} == {"SOLO, middle of 3"}


def a_curve(*values):
    return Curve(method="SimFL", party=None, rows=None, metric="logloss", trees=[*range(len(values))], values=[*values])


def test_curves_that_fall_far_are_drawn_on_a_logarithmic_scale_where_they_can():
    assert charts.falls_far([a_curve(2.3, 0.5), a_curve(2.3, 0.1)])
    assert not charts.falls_far([a_curve(0.7, 0.4)])
    assert not charts.falls_far([a_curve(0.9, 0.8), a_curve(0.2, 0.1)]), "they lie far apart; none falls far"
    assert not charts.falls_far([a_curve(2.3, 0.1), a_curve(0.5, -0.1)])
    assert not charts.falls_far([a_curve(6.0, -0.1)]), "a log likelihood has no logarithm"


def test_the_best_of_all_methods_is_the_highest_where_more_is_better(records):
    scores = [
        Score(method=method, metric=metric, value=value, rows=None, party=None)
        for method, metric, value in (
            *(("TFL", "aft-nloglik", 1.7), ("SimFL", "aft-nloglik", 1.6)),
            *(("TFL", "c-index", 0.50), ("SimFL", "c-index", 0.57)),
        )
    ]
    [compared] = [f for f in figures(msgspec.structs.replace(records["numbers"], scores=scores)) if f.name == "scores"]
    assert compared.best == {(1, 2), (1, 3)}
    assert compared.words.endswith("Lower is better; for C-index, higher.")


def test_a_taken_port_is_told(records, tmp_path):
    records["numbers"].save(tmp_path)
    with serve(tmp_path, 0) as server, pytest.raises(FileError, match="--port"):
        serve(tmp_path, server.server_address[1])


def test_a_loss_without_a_partys_rows_is_said_and_shaded_and_a_running_training_tells_when_it_ends():
    trees = [
        TreeRecord(
            round=n,
            builder="a",
            train={},
            validation={"logloss": 0.5},
            bytes=1,
            seconds=3.0,
            absent=["south"] if 4 <= n < 7 else [],
        )
        for n in range(10)
    ]
    parties = [PartyFacts(name=name, n_rows=9) for name in ("north", "south")]
    facts = {"started": "2026-11-17T00:00:00+00:00", "seconds": 30.0, "objective": "binary:logistic"}
    record = RunRecord(title="x", parties=parties, n_trees=50, history=trees, status="running", **facts)
    (drawn,) = [figure for figure in figures(record) if figure.name == "progress"]
    assert "the parties that were there (shaded: in rounds 5 to 7 without the rows of south)" in drawn.words
    assert '"absent": "south"' in json.dumps(drawn.charts)
    assert report.headline(record) == [
        "The training is running: 10 of 50 rounds are done, 3 s each: at most 2 min are left.",
        "10 B were sent so far.",
    ]
