"""`simfl audit --dpia`: the page that a data-protection officer files, from the same findings as the audit."""

import hashlib
import html
import json
import re
import shutil
from pathlib import Path

import msgspec
import pytest
from sklearn.datasets import load_breast_cancer

from simfl import messages as msg
from simfl.audit.dpia import SEEN_BY, render, seen_by
from simfl.audit.findings import Audit
from simfl.cli.dpia import gather
from simfl.deploy import traces
from simfl.deploy.study import read_study
from simfl.joint.private_rule import N_TREES
from simfl.privacy.guarantee import guarantee

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
PATIENCE = 180_000  # milliseconds: other tests may have the machine
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="No chromium here: apt-get install chromium")
STRANGE = "ill <b onclick=alert(1)>"  # a label


def write_files(folder, more="", approved=True):
    """A study of two wards, and the files of north."""
    X, y = load_breast_cancer(return_X_y=True, as_frame=True)
    X.iloc[:200, :5].set_axis(list("abcde"), axis=1).assign(**{STRANGE: 1 - y}).to_csv(folder / "t.csv", index=False)
    text = f'name = "wards"\nlabel = "{STRANGE}"\n[columns]\n' + "".join(f'{n} = "number"\n' for n in "abcde")
    text += f"[parameters]\nn_trees = 5\nn_jobs = 1\n{more}"
    (folder / "study.toml").write_text(text + '[[party]]\nname = "north"\n[[party]]\nname = "south"\n')
    own = 'name = "north"\ndata = "t.csv"\n' + 'study = "study.toml"\n' * approved
    (folder / "party.toml").write_text(f"{own}[require]\nmax_trees = 7\n")
    return folder


def text_of(path):
    """What a reader sees."""
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", Path(path).read_text().split("<body>")[1])).split())


def test_the_page_has_the_findings_of_the_audit_the_rules_and_the_digests(simfl_command, tmp_path, capsys):
    write_files(tmp_path)
    assert simfl_command("audit", "study.toml", "--no-advice", "--json", "a.json", "--dpia", "d.html") == 0
    assert "Written: d.html" in capsys.readouterr().out
    text, found = text_of("d.html"), json.loads(Path("a.json").read_text())
    assert len(found["findings"]) > 4
    for one in found["findings"]:
        row = f"{one['title']} {', '.join(one['roles'])} {one['success']:.1%} {one['guess']:.1%}"
        assert row in text
        assert (one["sentence"] in text) == (one["excess_interval"][0] > 0)  # what remains is said in words, too
    for file in ("study.toml", "t.csv", "a.json"):
        assert hashlib.sha256(Path(file).read_bytes()).hexdigest() in text
    assert "max_trees : 7" in text
    assert "The study keeps all rules of north." in text
    assert "None: the study has no epsilon" in text
    assert "Small groups off" in text
    assert all(kept.holds.replace("`", "") in text for kept in traces.KEPT)
    assert "HiddenRows" in text.split("Not sent")[0]
    assert "SealedModel" in text.split("Not sent")[1]


def test_an_audit_of_a_joint_study_with_epsilon_tests_its_promise(simfl_command, tmp_path):
    """Exact sums are not sent: attacks on them would be attacks on something else."""
    write_files(tmp_path, 'recipe = "joint"\nepsilon = 3.0\nrows = 400\ncolluding = 0\n')
    study = tmp_path / "study.toml"
    study.write_text(study.read_text().replace('= "number"', "= { low = 0, high = 3000 }"))
    assert simfl_command("audit", "study.toml", "--json", "a.json", "--dpia", "d.html") == 0
    (found,) = json.loads(Path("a.json").read_text())["findings"]
    assert found["attack"] == "canaries_from_values"
    assert found["details"]["epsilon at least"] < found["details"]["epsilon promised"] == 3.0
    assert "noisy sums of gradients per leaf" in json.loads(Path("a.json").read_text())["sees"]["other party"]
    text = text_of("d.html")
    assert "promised is 3" in text or "no better than guessing" in text
    assert "with epsilon = 3 and delta = 1e-05" in text
    assert "the hub and everybody who takes no part (the other" in text
    assert "this does not cover what the study declares" in text
    assert "The study would spend epsilon 3" in text
    assert "No bound is proven" not in text


def test_with_a_joint_study_the_promise_is_the_one_of_the_model(tmp_path):
    write_files(tmp_path, 'recipe = "joint"\nepsilon = 3.0\nrows = 400\n')
    study = tmp_path / "study.toml"
    study.write_text(study.read_text().replace('= "number"', "= { low = 0, high = 3000 }"))
    params = read_study(study).params()
    filing = gather(study, tmp_path / "party.toml", made_up([]))
    assert filing.guarantee == guarantee(params, 2)
    assert "adding or removing any one row" in filing.guarantee


def test_a_partys_limit_counts_the_trees_that_the_rule_chooses(tmp_path):
    """A study that leaves n_trees to the rule of private trainings has more of them than the default says."""
    write_files(tmp_path, 'recipe = "joint"\nepsilon = 3.0\nrows = 400\n')
    study = tmp_path / "study.toml"
    study.write_text(study.read_text().replace('= "number"', "= { low = 0, high = 9 }").replace("n_trees = 5\n", ""))
    filing = gather(study, tmp_path / "party.toml", made_up([]))
    assert filing.processing["recipe"] == f"joint, at most {N_TREES} rounds of trees"
    assert filing.refusals == [f"it requires max_trees = 7, and the study has {N_TREES}"]


def test_a_study_that_the_party_would_refuse_or_that_is_above_its_limits_says_so_first(simfl_command, tmp_path):
    write_files(tmp_path, "[audit]\nmax_excess = 0.0\n", approved=False)
    assert simfl_command("audit", "study.toml", "--no-advice", "--dpia", "d.html") == 1
    head = text_of("d.html").split("1. The processing")[0]
    assert re.search(r"\d of \d attacks do better than the limits of the study allow", head)
    assert "By its own rules, north would not take part: it names no study that it has approved" in head


@pytest.mark.parametrize("recipe", ["similar", "joint"])
def test_a_survival_study_has_its_page_which_says_what_was_not_attacked(simfl_command, tmp_path, recipe):
    write_files(tmp_path, f'recipe = "{recipe}"\nobjective = "survival:aft"\n')
    study = tmp_path / "study.toml"
    text = study.read_text().replace(f'label = "{STRANGE}"', f'label = "e"\nevent = "{STRANGE}"')
    study.write_text(text.replace('e = "number"\n', "").replace('a = "number"', "a = { low = 0, high = 40 }"))
    assert simfl_command("audit", "study.toml", "--no-advice", "--json", "a.json", "--dpia", "d.html") == 0
    text, found = text_of("d.html"), json.loads(Path("a.json").read_text())
    assert "with survival:aft" in text
    assert "a (number, where its values lie is declared), b (number)" in text
    assert len(found["notes"]) == {"similar": 1, "joint": 2}[recipe]
    assert all(note in text.split("4. Attacks")[1].split("5. Guarantee")[0] for note in found["notes"])
    assert "Not run, as it takes minutes" in text


def test_a_page_without_any_attack_is_no_good_news(tmp_path):
    write_files(tmp_path)
    audit = made_up([])
    text = render(audit, gather(tmp_path / "study.toml", tmp_path / "party.toml", audit))
    assert "No attack was tried" in text
    assert 'class="verdict warn"' in text


def test_without_a_study_there_is_nothing_to_file(simfl_command, tmp_path, capsys):
    write_files(tmp_path)
    assert simfl_command("audit", "t.csv", "--label", STRANGE, "--dpia", "d.html") == 1
    assert "--dpia needs a study" in " ".join(capsys.readouterr().err.split())


def test_of_every_message_that_leaves_the_page_knows_who_sees_it():
    assert {kind.__name__ for kind in msg.Reply.__args__} == set(SEEN_BY)
    shown = {masked: seen_by("RowSums", masked=masked) for masked in (True, False)}
    assert "the hub" in shown[False]
    assert "the hub" not in shown[True]


def made_up(findings, limits=()):
    """The result of an audit that did not take place."""
    setting = {"matching": "blind", "masked": True, "min_group": 1, "parties": 2, "recipe": "similar"}
    setting |= {"objective": "binary:logistic", "n_hashes": 4, "bucket_width": 1.0, "n_neighbors": 5, "seed": 0}
    facts = {"name": "t", "n_rows": 200, "n_features": 5, "n_attacker": 100, "n_victim": 100, "advice": []}
    facts |= {"setting": setting | {"rematch": 0}, "findings": findings, "limits": dict(limits)}
    return msgspec.convert(facts, Audit)


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """A page with every mark, and an attack that this page has never heard of."""
    folder = write_files(tmp_path_factory.mktemp("dpia"))
    finding = {"attack": "queries", "title": "Members, by asking the model", "roles": ["outsider"], "measure": "right"}
    finding |= {"success": 0.61, "success_interval": (0.58, 0.64), "guess": 0.5, "excess": 0.11, "n": 900}
    finding |= {"excess_interval": (0.08, 0.14), "sentence": "Whoever has the model is right in 61 %.", "details": {}}
    calm = finding | {"attack": "other", "title": "Nothing", "excess": 0.0, "excess_interval": (-0.1, 0.1)}
    bad = finding | {"attack": "bad", "title": "Above"}
    audit = made_up([calm, finding, bad], {"bad": 0.1})
    path = folder / "d.html"
    path.write_text(render(audit, gather(folder / "study.toml", folder / "party.toml", audit)))
    return path


def test_an_attack_that_the_page_does_not_know_is_on_it(page):
    text = text_of(page)
    assert "Members, by asking the model outsider 61.0% 50.0% +11.0 +8.0 +14.0 900 better than guessing" in text
    assert "Members, by asking the model (outsider): Whoever has the model is right in 61 %." in text
    assert text.index("Members, by") < text.index("Nothing outsider")  # the worst first


def test_names_cannot_become_markup_and_nothing_is_fetched(page):
    text = page.read_text()
    assert STRANGE not in text
    assert html.escape(STRANGE) in text
    assert not re.search(r"<script|https?://|url\(|src=", text)


@needs_chromium
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_is_accessible_and_prints_on_a4(page, scheme):
    from axe_playwright_python.sync_playwright import Axe
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"], timeout=PATIENCE)
        shown = browser.new_context(
            offline=True, color_scheme=scheme, viewport={"width": 360, "height": 740}
        ).new_page()
        shown.goto(page.as_uri(), timeout=PATIENCE)
        found = Axe().run(shown).response["violations"]
        assert [(v["id"], v["nodes"][0]["html"]) for v in found] == []
        assert shown.evaluate("document.documentElement.scrollWidth") <= 360
        pdf = shown.pdf(prefer_css_page_size=True)
        shown.emulate_media(media="print")
        assert shown.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        browser.close()
    assert re.search(rb"/MediaBox \[0 0 59[45][.\d]* 84[12][.\d]*\]", pdf)
