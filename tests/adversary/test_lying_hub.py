"""A hub that lies: what a party that approved a study refuses. Every attack here worked once."""

from importlib.metadata import version

import numpy as np
import pytest
from msgspec.structs import replace

pytest.importorskip("nvflare")

from types import SimpleNamespace

from simfl import messages as msg
from simfl import wire
from simfl.deploy.endpoints import PartyEndpoint
from simfl.errors import ProtocolError
from simfl.transport import flare
from tests.adversary.lying import NAMES, STUDY, halted, keys_with, refuses, terms_of, whole_run


def test_an_honest_run_breaks_no_rule():
    for changed in (
        {},
        {"matching": "shared"},
        {"recipe": "paper", "rematch": 0},
        {"n_neighbors": 0, "rematch": 0},
    ):
        assert whole_run(**changed).replies(msg.Finished).keys() == {*NAMES}, changed


# --- 2: another study ------------------------------------------------------------------------------------------------

PATIENT, UNLISTED = "Zebedee-Quimby", "Ward-Xanadu"
COLUMNS = 'age = "number"\nward = ["a", "b"]\n'
PARTIES = "".join(f'[[party]]\nname = "{name}"\n' for name in ("north", "south", "west"))
APPROVED = f'name = "s"\nlabel = "died"\n[columns]\n{COLUMNS}[parameters]\nn_trees = 4\nrandom_state = 5\n{PARTIES}'


UNDECLARED = APPROVED.replace(f"[columns]\n{COLUMNS}", "")


class Site:
    """The real endpoint of a party, as FLARE calls it, beside a table with names of patients."""

    def __init__(self, folder, study=APPROVED, require="", table=None):
        self.folder, self.number = folder, 0
        lines = [f"{30 + i},{'ab'[i % 2]},{i % 2},{PATIENT}-{i}" for i in range(20)]
        (folder / "secret-place.csv").write_text(table or "\n".join(["age,ward,died,patient_name", *lines]) + "\n")
        if study is not None:
            (folder / "mine.toml").write_text(study)
        named = "" if study is None else 'study = "mine.toml"\n'
        rules = f"{require or '[require]'}\nsigned = false\n"  # no kit here
        (folder / "party.toml").write_text(f'name = "north"\ndata = "secret-place.csv"\n{named}{rules}')
        self.end = PartyEndpoint()
        self.end.open("north", folder)

    def greet(self, study=APPROVED, run="r"):
        return self.end.answer(msg.Greet(version=msg.VERSION, simfl=version("simfl"), run=run, study=study)).problems

    def ask(self, question):
        """The frame that leaves: its kind and its body."""
        self.number += 1
        data = wire.encode(question)
        hub = SimpleNamespace(caller="server")
        frame = self.end.ask(flare.run_tag("r"), self.number, len(data), data, hub)
        assert self.end.more(self.number, 0, hub) == frame[flare._HEAD.size :] or frame[0] == flare._FAILED
        return frame[0], frame[flare._HEAD.size :]

    def written(self):
        return {path.relative_to(self.folder): path.read_bytes() for path in self.folder.rglob("study.toml")}


OTHERS = {
    "masks off": APPROVED.replace("n_trees = 4", "n_trees = 4\nmasked = false"),
    "a label that is a column": APPROVED.replace('"died"', '"patient_name"'),
    "a study without the party": APPROVED.replace('"north"', '"east"'),
    "one byte more": APPROVED + "\n",
}


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
def test_another_study_than_the_approved_one_is_not_joined(tmp_path, other):
    site = Site(tmp_path)
    (problem,) = site.greet(other)
    assert "is not the one that it has approved" in problem
    assert not site.written()
    kind, body = site.ask(msg.DescribeLabels(objective="multi:softprob"))
    assert (kind, b"before the handshake" in body) == (flare._FAILED, True)


def test_a_second_weaker_study_changes_nothing(tmp_path):
    site = Site(tmp_path)
    assert site.greet() == []
    session, before = site.end.session, site.written()
    for other in (*OTHERS.values(), APPROVED.replace("n_trees", "# n_trees")):
        assert "joined another study or run" in site.greet(other)[0]
        (tmp_path / "mine.toml").write_text(other)  # not even when the party's people approve it meanwhile
        assert "joined another study or run" in site.greet(other)[0]
        (tmp_path / "mine.toml").write_text(APPROVED)
    assert "joined another study or run" in site.greet(run="other")[0]
    assert (site.end.session, site.written()) == (session, before)
    assert site.greet() == []  # the same once more is no harm


def test_the_files_of_an_earlier_run_are_not_replaced_by_another_study(tmp_path):
    assert Site(tmp_path).greet() == []
    newer = APPROVED.replace("n_trees = 4", "n_trees = 5")
    later = Site(tmp_path, newer)
    before = later.written()
    assert "is one of another study" in later.greet(newer, run="r")[0]
    assert later.written() == before
    assert later.greet(newer, run="r2") == []


def test_without_an_approved_study_a_party_joins_nothing(tmp_path):
    (problem,) = Site(tmp_path, study=None).greet()
    assert "names no study that it has approved" in problem


def test_without_a_certificate_a_party_joins_nothing(tmp_path):
    site = Site(tmp_path)
    file = tmp_path / "party.toml"
    file.write_text(file.read_text().replace("signed = false\n", ""))
    (problem,) = site.greet()
    assert "it has no certificate, so that the hub could make up keys" in problem
    assert "`simfl join` makes a kit" in problem
    kind, body = site.ask(msg.DrawKey())
    assert (kind, b"before the handshake" in body) == (flare._FAILED, True)


def test_an_approved_study_must_keep_the_partys_own_rules(tmp_path):
    rules = {
        "masked = true": ("n_trees = 4", "n_trees = 4\nmasked = false", ""),
        "matching = blind": ("n_trees = 4", 'n_trees = 4\nmatching = "shared"', ""),
        "min_group = 5": ("", "", "min_group = 5"),
        "min_parties = 3": ("", "", "min_parties = 3"),
        "max_trees = 3": ("", "", "max_trees = 3"),
        "labels": ('"died"', '"patient_name"', 'labels = ["died"]'),
        "columns": ("", "", 'columns = ["age"]'),
    }
    for number, (rule, (old, new, require)) in enumerate(rules.items()):
        folder = tmp_path / str(number)
        folder.mkdir()
        study = APPROVED.replace(old, new) if old else APPROVED
        (problem,) = Site(folder, study, f"[require]\n{require}\n").greet(study)
        assert f"it requires {rule}" in problem
        assert not list(folder.rglob("runs"))


@pytest.mark.parametrize(("study", "rule"), [(APPROVED, "also uses"), (UNDECLARED, "declares none")])
def test_no_columns_at_all_are_none_and_not_any(tmp_path, study, rule):
    (problem,) = Site(tmp_path, study, "[require]\ncolumns = []\n").greet(study)
    assert rule in problem


@pytest.mark.parametrize("line", ["epsilon_total = inf", "epsilon_total = nan", "mask = true", "min_group = 0"])
def test_a_rule_that_would_not_hold_is_no_rule(tmp_path, line):
    """A party that misspelt its rules joins nothing; the words of its file stay with it."""
    (problem,) = Site(tmp_path, require=f"[require]\n{line}\n").greet()
    assert problem == "its files and the study do not fit (its own log says how)"


# --- 3: other rows set aside -----------------------------------------------------------------------------------------


def test_the_rows_set_aside_are_those_of_the_study_and_stay_the_same():
    session, question = halted(msg.Describe, validation_fraction=0.2)
    refuses(session, replace(question, validation_fraction=0.21), "the study sets 0.2 of the rows aside")
    refuses(session, replace(question, seed=6), "random_state is 5")
    session, question = halted(msg.Describe, validation_fraction=0.2, random_state=None)
    first = session.handle(question)
    refuses(session, replace(question, seed=question.seed + 1), "as the first time in this run")
    assert session.handle(question) == first


# --- sums that the study does not need -------------------------------------------------------------------------------


def test_labels_are_what_the_objective_says():
    """Counts of a regression's labels would be their histogram."""
    session, question = halted(msg.SumLabels, objective="reg:squarederror")
    refuses(session, replace(question, classes=[0, 1]), "the study's objective is reg:squarederror")
    session, start = halted(msg.Start, objective="reg:squarederror")
    refuses(session, replace(start, classes=[0, 1]), "the study's objective is reg:squarederror")
    session, question = halted(msg.SumLabels)
    refuses(session, replace(question, classes=None), "the study's objective is binary:logistic")


def test_two_classes_are_zero_and_one():
    """The second of them as number 999 would have a gradient a thousand times as long."""
    session, start = halted(msg.Start)
    many = [0, *range(2, 1000), 1]
    refuses(session, replace(start, classes=many), "the study's objective is binary:logistic")


@pytest.mark.parametrize("unused", [{"n_neighbors": 0, "rematch": 0}, {"recipe": "paper", "rematch": 0}], ids=str)
def test_features_are_summed_only_where_the_study_needs_it(unused):
    _, question = halted(msg.SumFeatures)
    session, _ = halted(msg.DescribeLabels, **unused)
    refuses(session, question, "nothing in the study needs sums of features")


def test_columns_stay_of_their_kind(tmp_path):
    lines = [f"{30 + i},{'ab'[i % 2]},{i % 2}" for i in range(20)]
    site = Site(tmp_path, study=UNDECLARED, table="\n".join(["age,ward,died", *lines]) + "\n")
    assert site.greet(UNDECLARED) == []
    described = site.end.answer(msg.Describe(version=msg.VERSION, validation_fraction=0.0, seed=5))
    levels = ("30", "31")
    false = [replace(c, kind="category", levels=levels) if c.name == "age" else c for c in described.columns]
    with pytest.raises(ProtocolError, match=r"columns of another kind than was agreed on: \['age'\]"):
        site.end.answer(msg.Settle(columns=false))
    site.end.answer(msg.Settle(columns=described.columns))


# --- 5: hash values --------------------------------------------------------------------------------------------------


def test_blind_matching_is_not_switched_off_by_a_question():
    session, question = halted(msg.Hash)
    refuses(session, replace(question, seed=1), "matching = blind")
    session, question = halted(msg.HashByTrees)
    refuses(session, replace(question, blind=False), "matching = blind")


@pytest.mark.parametrize("matching", ["blind", "shared"])
def test_there_are_no_more_hash_values_than_the_study_allows(matching):
    session, question = halted(msg.Hash, matching=matching)
    refuses(session, replace(question, n_hashes=255), "the study has 5 hash values per row")
    refuses(session, replace(question, law="cauchy"), "hash_law is gaussian")
    session, question = halted(msg.HashByTrees, matching=matching)
    refuses(session, replace(question, n_hashes=255), "no more leaves than hash values")


def test_a_party_counts_hash_values_against_its_own_columns():
    session, question = halted(msg.Hash)
    session.rules.terms = terms_of(**STUDY, n_hashes=6)
    refuses(session, replace(question, n_hashes=6), r"fewer hash values than unknown columns \(L < d\)")


def test_buckets_that_would_tell_values_apart_are_refused():
    session, question = halted(msg.Hash, matching="shared")
    refuses(session, replace(question, bucket_width=1e-4), "too narrow for this party's rows")


def test_rows_are_hashed_in_one_way_only():
    session, question = halted(msg.Hash, matching="shared")
    session.handle(question)
    alone = np.full(6, 1e6)  # one column of the six is left
    alone[0] = 1.0
    refuses(session, replace(question, deviation=wire.pack(alone)), "rows are hashed in one way")


def test_a_study_that_matches_no_rows_hashes_none():
    _, question = halted(msg.Hash)
    session, _ = halted(msg.DescribeLabels, n_neighbors=0, rematch=0)
    refuses(session, question, "looks for no similar rows")


# --- 6: another training ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"leaf_values": "builder"}, "the recipe decides where leaf values come from"),
        ({"n_trees": 1}, "n_trees = 6, not 1"),
        ({"min_group": 2}, "min_group = 1, not 2"),
        ({"base_margin": [0.0] * 9}, "the study has 1 outputs"),
    ],
)
def test_a_protection_is_not_switched_off_by_a_start(change, rule):
    session, start = halted(msg.Start)
    of_params = {name: value for name, value in change.items() if name in start.params.__struct_fields__}
    changed = replace(start, params=replace(start.params, **of_params))
    refuses(session, replace(changed, **{k: v for k, v in change.items() if k not in of_params}), rule)
    session.handle(start)


# --- 7: many questions of one round ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [msg.SumOntoRows, msg.Grow, msg.SumPerLeaf])
def test_a_round_is_answered_once_and_an_identical_question_identically(kind):
    session, question = halted(kind, 1)  # there is a round before
    first = session.handle(question)
    assert wire.encode(session.handle(question)) == wire.encode(first)
    step = replace(question.mask, step=question.mask.step + 1)
    refuses(session, replace(question, mask=step), "is answered once")
    refuses(session, replace(question, exponents=(0, 0)), "is answered once")
    refuses(session, replace(question, round=question.round - 1), "is over")
    assert wire.encode(session.handle(question)) == wire.encode(first)


@pytest.mark.parametrize("kind", [msg.SumOntoRows, msg.Grow])
def test_short_words_only_where_sums_onto_rows_find_nothing_but_splits(kind):
    session, question = halted(kind, leaf_values="builder", extra_depth=0)
    assert question.word_bytes >= 7
    refuses(session, replace(question, word_bytes=3), "at least 7 bytes")


def test_a_second_start_has_the_same_min_group():
    session, start = halted(msg.Start, min_group=5)
    session.handle(start)
    refuses(session, replace(start, params=replace(start.params, min_group=1)), "min_group = 5, not 1")
    refuses(session, replace(start, base_margin=[1.0]), "a training starts alike")


def test_starts_come_to_an_end():
    session, start = halted(msg.Start)
    for _ in range(30):
        session.handle(start)
    refuses(session, start, "starts again at most 30 times")


def test_trees_come_from_whose_turn_it_is_and_are_as_many_as_the_study_has():
    session, question = halted(msg.SumPerLeaf)
    refuses(session, replace(question, trees=question.trees * 95), "a round has 1 trees, not 95")
    session, question = halted(msg.Grow)
    refuses(session, replace(question, round=question.round + 1), "it is the turn of 'p1'")
    session, question = halted(msg.SumOntoRows)
    refuses(session, replace(question, builder="p2"), "in round 1 it is the turn of 'p1'")
    own = replace(question, round=3, builder="p0")
    refuses(session, own, "a builder is not asked for sums onto its rows")
    session, question = halted(msg.Finish)
    full = [[t] for t in question.previous] * 9
    refuses(session, msg.Replay(rounds=full), "no more rounds than the study has")


# --- 8: sums over fewer parties --------------------------------------------------------------------------------------


def test_similar_rows_are_never_the_receivers_own():
    session, question = halted(msg.TakeSimilar)
    own = {"p0": question.similar["p1"]}
    refuses(session, replace(question, similar=question.similar | own), "those of other parties")
    refuses(session, replace(question, parties=[*NAMES, "hub"]), "the study has no party")
    refuses(session, replace(question, n_rows={"p1": 1}), "every party is named once")


@pytest.mark.parametrize("kind", [msg.SumFeatures, msg.SumLabels, msg.SumOntoRows, msg.SumPerLeaf, msg.Finish])
def test_masks_are_over_exactly_those_who_exchanged_keys(kind):
    session, question = halted(kind)
    fewer = replace(question.mask, parties=["p0", "p1"])
    refuses(session, replace(question, mask=fewer), "over exactly those who exchanged keys")
    session, question = halted(kind)
    refuses(session, replace(question, mask=None), "without masks")


def test_keys_are_exchanged_with_enough_parties_of_the_study():
    session, _ = halted(msg.SumFeatures)
    refuses(session, keys_with(session, "p1", "hub"), "parties of the study only")
    refuses(session, keys_with(session), r"at least 2 parties take part \(min_parties\)")


def test_what_was_summed_over_all_is_not_summed_again_over_fewer():
    for kind, rule in ((msg.SumFeatures, "same parties"), (msg.SumLabels, "same parties")):
        session, question = halted(kind)
        session.handle(question)
        session.handle(keys_with(session, "p1"))
        refuses(session, replace(question, mask=msg.Masking(step=0, parties=["p0", "p1"])), rule)


def test_a_round_is_not_repeated_over_fewer_parties():
    session, question = halted(msg.SumOntoRows)
    _, start = halted(msg.Start)
    session.handle(question)
    session.handle(keys_with(session, "p1"))
    session.handle(replace(start, n_parties=2))  # a claimed dropout
    fewer = msg.Masking(step=0, parties=["p0", "p1"])
    refuses(session, replace(question, mask=fewer), f"round {question.round} is answered once")


def test_a_secret_of_the_party_file_is_sealed_for_nobody():
    session, _ = halted(msg.SumFeatures)
    assert session.handle(keys_with(session, "p1", "p2")).sealed == {}


# --- 9: nothing but the agreed leaves --------------------------------------------------------------------------------


def tables():
    good = [f"{30 + i},{'ab'[i % 2]},{i % 2},{PATIENT}" for i in range(20)]
    head = "age,ward,died,patient_name"
    return {
        "a name among numbers": [head, *good, f"{PATIENT},a,1,x"],
        "an unlisted category": [head, *good, f"40,{UNLISTED},1,x"],
        "a missing column": ["age,died,patient_name", f"30,1,{PATIENT}"],
        "a broken line": [head, *good, f'40,a,1,"{PATIENT}', f"{PATIENT},{PATIENT},1,2,3,4,5,6"],
        "labels that are numbers": [head, *(line.replace(f",{i % 2},", f",0.{i}77,") for i, line in enumerate(good))],
        "labels that are names": [head, *(f"30,a,{PATIENT}-{i},x" for i in range(20))],
        "no table at all": None,
    }


@pytest.mark.parametrize("kind", tables())
def test_no_value_path_or_library_text_leaves_with_a_problem(tmp_path, kind):
    lines = tables()[kind]
    site = Site(tmp_path, table=None if lines is None else "\n".join(lines) + "\n")
    if lines is None:
        (tmp_path / "secret-place.csv").unlink()
    greet = msg.Greet(version=msg.VERSION, simfl=version("simfl"), run="r", study=APPROVED)
    sent = [site.ask(greet)]
    sent.append(site.ask(msg.Describe(version=msg.VERSION, validation_fraction=0.0, seed=5)))
    sent.append(site.ask(msg.DescribeLabels(objective="binary:logistic")))
    sent.append(site.ask(msg.SumLabels(objective="binary:logistic", classes=[0, 1])))
    sent.append(site.ask(msg.Recall(round=0)))
    told = b"\n".join(body for number, (kind, body) in enumerate(sent) if number != 2 or kind == flare._FAILED)
    for hidden in (PATIENT, UNLISTED, "77", "secret-place", str(tmp_path), "Error", "Traceback", "pandas", "patient_"):
        assert hidden.encode() not in told, hidden


def test_a_failure_that_nobody_foresaw_says_nothing(tmp_path, monkeypatch):
    site = Site(tmp_path)
    assert site.greet() == []

    def fail(self, message):
        raise RuntimeError(f"xgboost: row 3 of {PATIENT} in {tmp_path}")

    monkeypatch.setattr(PartyEndpoint, "answer", fail)
    kind, body = site.ask(msg.DrawKey())
    assert kind == flare._FAILED
    assert body.decode() == "something went wrong (its own log says what)"
    assert site.end.more(site.number, 0, SimpleNamespace(caller="server")) == b""
