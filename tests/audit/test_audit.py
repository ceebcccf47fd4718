import json
from html.parser import HTMLParser

import msgspec
import numpy as np
import pytest
from scipy import sparse
from sklearn.datasets import load_breast_cancer, load_diabetes, load_iris

from simfl.audit import finished, joint, private, trials
from simfl.audit.advice import first_within
from simfl.audit.audit import audit
from simfl.audit.findings import TITLES, Audit, interval
from simfl.errors import DataError, ParameterError, PrivacyError


@pytest.fixture(scope="module")
def cancer():
    return load_breast_cancer(return_X_y=True)


@pytest.fixture(scope="module")
def shared(cancer):
    """The paper's L and r on standardised features."""
    return audit(*cancer, name="<cancer>", matching="shared", n_hashes=29, bucket_width=4.0)


@pytest.fixture(scope="module")
def blind(cancer):
    return audit(*cancer, matching="blind", advise=False)


def only(found, attack, role=None):
    matches = [f for f in found.findings if f.attack == attack and (role is None or role in f.roles)]
    assert len(matches) == 1
    return matches[0]


def test_the_papers_condition_protects_little(shared):
    rows = only(shared, "rows_from_codes")
    assert rows.success > 0.9
    assert 0.35 < rows.guess < 0.45
    assert only(shared, "members_from_codes").success == 1.0
    assert only(shared, "attribute_from_codes").success > 0.99


def test_blind_matching_leaves_the_hub_with_guessing_unless_it_has_a_sample(blind):
    alone = only(blind, "rows_from_tokens", "hub")
    assert alone.excess < 0.02
    assert only(blind, "rows_from_tokens", "hub with a sample").excess_interval[0] > 0.05


def test_ids_tell_less_than_codes(shared, blind):
    assert only(shared, "rows_from_codes").success > only(blind, "rows_from_pointers").success + 0.1


def test_useless_hash_values_are_worth_a_guess(cancer):
    attacks = ["rows_from_codes", "members_from_codes", "attribute_from_codes"]
    found = audit(*cancer, matching="shared", n_hashes=1, bucket_width=1e9, advise=False, attacks=attacks)
    assert abs(only(found, "rows_from_codes").excess) < 1e-6
    assert only(found, "members_from_codes").success == 0.5
    assert abs(only(found, "attribute_from_codes").excess) < 1e-6


def test_every_finding_has_its_interval_and_its_sentence(shared, blind):
    for found in (shared, blind):
        for f in found.findings:
            assert f.success_interval[0] <= f.success <= f.success_interval[1]
            assert f.excess_interval[0] <= f.excess <= f.excess_interval[1]
            assert f.excess == pytest.approx(f.success - f.guess)
            assert f"{f.success:.1%}" in f.sentence
            assert "{" not in f.sentence
            assert f.roles
            assert TITLES[f.attack] == f.title


def test_groups_of_at_least_five_leave_nobody_alone(cancer):
    options = {"matching": "shared", "advise": False, "attacks": ["labels_from_sums"]}
    one, five = (audit(*cancer, min_group=g, **options) for g in (1, 5))
    assert only(one, "labels_from_sums").details["alone"] > 0.2
    assert only(five, "labels_from_sums").details["alone"] == 0.0
    assert only(five, "labels_from_sums").details["pure"] < only(one, "labels_from_sums").details["pure"]


def test_masked_sums_are_nothing_to_the_hub(cancer, blind):
    attacks = ["labels_from_sums", "values_from_trees"]
    masked = audit(*cancer, matching="blind", masked=True, advise=False, attacks=attacks)
    assert [f.attack for f in masked.findings] == ["values_from_trees"]
    assert only(blind, "labels_from_sums").roles == ["hub"]


def test_the_leaf_values_give_away_what_the_statistics_would(shared):
    assert only(shared, "rows_from_trees").details["counts_read"] > 0.5


def test_thresholds_are_single_values_of_the_builder(shared):
    assert only(shared, "values_from_trees").success > 0.9


def test_more_parties_make_larger_groups(cancer):
    options = {"matching": "shared", "advise": False, "attacks": ["labels_from_sums"]}
    alone = [only(audit(*cancer, parties=n, **options), "labels_from_sums").details["alone"] for n in (2, 8)]
    assert alone[1] < alone[0] / 2


@pytest.mark.parametrize("matching", ["shared", "blind"])
@pytest.mark.parametrize("load", [load_iris, load_diabetes])
def test_classes_and_numbers_are_audited_too(load, matching):
    X, y = load(return_X_y=True)
    found = audit(X, y, matching=matching, advise=False, rematch=5)
    expected = {"load_iris": "multi:softprob", "load_diabetes": "reg:squarederror"}[load.__name__]
    assert found.setting.objective == expected
    assert only(found, "labels_from_sums").excess > 0


def test_sparse_tables_text_labels_and_gaps_are_no_trouble(cancer):
    X, y = cancer
    words = np.where(y == 1, "benign", "malignant")
    holes = X.copy()
    holes[::7, 3] = np.nan
    options = {"matching": "shared", "advise": False, "rematch": 5, "attacks": ["rows_from_codes"]}
    whole = audit(X, y, **options)
    for table in (sparse.csr_matrix(X), holes):
        found = audit(table, words, **options)
        difference = only(found, "rows_from_codes").success - only(whole, "rows_from_codes").success
        assert abs(difference) < 0.05


def test_a_table_of_thousands_of_columns_is_not_searched_attribute_by_attribute():
    rng = np.random.default_rng(0)
    words = (rng.random((200, trials.MOST_COLUMNS + 500)) < 0.5).astype(float)
    asked = {"matching": "shared", "advise": False, "attacks": ["rows_from_codes"], "n_hashes": 20}
    few, many = (audit(words[:, :d], words[:, 0], **asked).findings[0].details for d in (60, words.shape[1]))
    assert "refined" in few
    assert "refined" not in many


def test_the_same_seed_gives_the_same_audit(cancer, shared):
    options = {"matching": "shared", "n_hashes": 29, "bucket_width": 4.0, "advise": False}
    attacks = ["rows_from_codes", "members_from_codes", "labels_from_sums", "values_from_trees"]
    again = audit(*cancer, attacks=attacks, **options)
    assert again.findings == [only(shared, attack) for attack in attacks]


def test_some_attacks_alone_can_be_asked_for(cancer, shared):
    found = audit(*cancer, matching="shared", n_hashes=29, bucket_width=4.0, advise=False, attacks=["rows_from_codes"])
    assert found.findings == [only(shared, "rows_from_codes")]


def test_limits_decide_what_is_exceeded(cancer):
    attacks = ["rows_from_codes", "members_from_codes"]
    options = {"matching": "shared", "advise": False, "rematch": 5, "attacks": attacks}
    assert not audit(*cancer, **options, max_excess=1.0).exceeded
    strict = audit(*cancer, **options, max_excess=0.0)
    assert only(strict, "rows_from_codes") in strict.exceeded
    one = audit(*cancer, **options, max_excess={"members_from_codes": 0.2})
    assert [f.attack for f in one.exceeded] == ["members_from_codes"]


def test_the_advice_keeps_what_it_promises(cancer):
    options = {"matching": "shared", "rematch": 5, "attacks": ["rows_from_codes"]}
    limited = audit(*cancer, bucket_width=4.0, max_excess=0.3, **options)
    advice = next(a for a in limited.advice if a.attack == "rows_from_codes")
    assert advice.max_excess == 0.3
    assert advice.n_hashes is not None
    assert advice.bucket_width is not None
    for params in (
        {"n_hashes": advice.n_hashes, "bucket_width": 4.0},
        {"n_hashes": 29, "bucket_width": advice.bucket_width},
    ):
        found = audit(*cancer, advise=False, **options, **params)
        assert only(found, "rows_from_codes").excess < advice.max_excess + 0.1
    more = audit(*cancer, advise=False, n_hashes=advice.n_hashes + 6, bucket_width=4.0, **options)
    assert only(more, "rows_from_codes").excess > advice.max_excess


@pytest.mark.parametrize("last", range(-1, 6))
def test_bisection_finds_the_first_that_holds(last):
    options = list(range(6))
    found = first_within(options, lambda n: n > last)
    assert found == (None if last >= 5 else last + 1)


def test_the_interval_covers_the_mean_about_as_often_as_it_says():
    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(60):
        low, high = interval(rng.normal(size=80))
        covered += low <= 0 <= high
    assert 50 <= covered <= 60


# --- what it refuses -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"matching": "open"}, ParameterError, "shared"),
        ({"parties": 1}, ParameterError, "two"),
        ({"parties": 200}, DataError, "rows are too few"),
        ({"max_excess": 2.0}, ParameterError, "from 0 to 1"),
        ({"max_excess": {"magic": 0.1}}, ParameterError, "rows_from_codes"),
        ({"n_hashes": 30}, PrivacyError, "L < d"),
        ({"n_neighbors": 0}, ParameterError, "n_neighbors=0"),
        ({"n_hash": 3}, TypeError, "n_hashes"),
        ({"attacks": ["magic"]}, ParameterError, "rows_from_codes"),
        ({"min_group": 0}, ParameterError, "min_group"),
    ],
)
def test_what_cannot_be_audited_is_refused_with_a_reason(cancer, options, error, words):
    with pytest.raises(error, match=words):
        audit(*cancer, advise=False, **options)


# --- for programs and for people -------------------------------------------------------------------------------------


def test_the_json_holds_the_whole_audit(shared):
    text = shared.to_json()
    assert json.loads(text)["exceeded"] == []
    assert msgspec.json.decode(text, type=Audit) == shared


class Page(HTMLParser):
    VOID = frozenset({"meta", "rect", "line", "link", "img", "br"})

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.words = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)


def test_the_page_is_whole_and_needs_nothing_else(shared):
    text = shared.html()
    page = Page(text)
    assert page.open == []
    assert not {"script", "link", "img", "iframe"} & {tag for tag, _ in page.tags}
    assert "http" not in text
    assert "url(" not in text
    said = " ".join(page.words)
    assert "What <cancer> would reveal" in said  # and not a tag of that name
    assert all(f.sentence in said for f in shared.findings)
    assert all(a.sentence in said for a in shared.advice)


def test_the_page_says_what_is_above_the_limit(cancer):
    found = audit(*cancer, matching="shared", advise=False, rematch=5, max_excess=0.3)
    assert len(found.exceeded) >= 2
    assert f"{len(found.exceeded)} of {len(found.findings)} attacks do better than the limits allow" in found.html()


def test_there_is_a_title_for_every_attack():
    known = {name for room in (trials, joint, private, finished) for name in vars(room)}
    assert set(TITLES) <= known


@pytest.mark.parametrize(("n", "mark"), [(1, "few"), (9, "few"), (10, "warn")])
def test_a_success_on_a_handful_of_rows_is_not_called_sure(blind, n, mark):
    best = max(blind.findings, key=lambda finding: finding.excess_interval[0])
    found = msgspec.structs.replace(best, n=n)
    audited = msgspec.structs.replace(blind, findings=[found], limits={})
    assert audited.mark(found) == mark
    assert audited.verdict.startswith(f"{int(mark == 'warn')} of 1 attacks surely")
    assert ("too few rows to tell" in audited.html()) == (mark == "few")
