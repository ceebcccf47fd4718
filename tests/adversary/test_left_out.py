"""A hub and a party in league leave another one out, and subtract: no exact sum of it may follow from two totals."""

import numpy as np
import pytest

import simfl
from simfl import messages as msg
from simfl.errors import PartyLost
from simfl.joint import coarse
from simfl.joint.agreement import _moments
from simfl.joint.machine import Machine
from simfl.party import Session
from simfl.preprocessing.scaling import Moments, common_scale
from simfl.privacy.tokens import secret_of
from simfl.transport.local import LocalTransport
from tests.adversary.test_lying_joint import NAMES, STUDY, terms_of
from tests.wire import grow_together, rows

VICTIM, SIZES = 1, (160, 150, 140)
CUTS = 3  # steps: moments of columns, then two counts
LABELS, FIRST_BATCH = CUTS, CUTS + 1


class LeavesOut(LocalTransport):
    """Says that a party is lost, when the others have taken what followed from a step; and, later, that it is back."""

    def __init__(self, handlers, step, back=False):
        super().__init__(handlers, 1)
        self.step, self.back, self.done = step, back, False

    def ask_all(self, messages):
        question = next(iter(messages.values()), None)
        if isinstance(question, msg.Add) and question.step > self.step and not self.done:
            self.done = True
            super().ask_all({name: own for name, own in messages.items() if name != NAMES[VICTIM]})
            raise PartyLost([NAMES[VICTIM]], "cut off.")
        return super().ask_all(messages)

    def returned(self):
        return [NAMES[VICTIM]] if self.back and len(self.parties) < len(NAMES) else []


@pytest.fixture
def totals(monkeypatch):
    """What the party in league reads: by those who are present and the name of the step, the last one."""
    found, apply = {}, Machine.apply

    def listen(machine, decision):
        found[machine.plan.parties, machine.step] = decision
        apply(machine, decision)

    monkeypatch.setattr(Machine, "apply", listen)
    return found


def members(objective="binary:logistic"):
    made = [rows(n, i) for i, n in enumerate(SIZES)]
    labels = {
        "binary:logistic": lambda X, y: y,
        "multi:softprob": lambda X, y: np.digitize(X[:, 0], [-0.5, 0.5]),
        "reg:squarederror": lambda X, y: 3 * X[:, 0] + y,
    }
    return [simfl.Party(name, X, labels[objective](X, y)) for name, (X, y) in zip(NAMES, made, strict=True)]


def leave_out(step, people=None, back=False, **changed):
    study = STUDY | changed
    handlers = [Session(one, secret=secret_of(0), terms=terms_of(**study), run="r") for one in people or members()]
    for session in handlers:
        session.private = session.name.encode().ljust(32)
    grown, model = grow_together(LeavesOut(handlers, step, back), min_parties=2, **study)
    assert [*grown.missed] == [NAMES[VICTIM]]
    return model


def difference(totals, step, first=0):
    """Of the totals with and without the victim."""
    both = [np.frombuffer(totals[names, step][first:], "<f8") for names in (NAMES, (NAMES[0], NAMES[2]))]
    n = min(map(len, both))
    return both[0][:n] - both[1][:n]


def unlike(found, own):
    """Whether these are not the victim's sums: one may be near by chance, most are rows away (a row adds about 1)."""
    away = np.abs(np.asarray(found) - own)
    return away.min() > 0.1 and np.median(away) > 2


def test_the_moments_of_a_party_that_is_left_out_stay_unknown(totals):
    people = members()
    assert leave_out(0, people).n_trees == 4
    own = np.concatenate([*vars(_moments(people[VICTIM].rows.X)).values()])
    n_rows, *found = difference(totals, "moments of the columns")
    assert n_rows == SIZES[VICTIM]  # the hub knows it anyway
    assert unlike(found, own)


@pytest.mark.parametrize("objective", ["binary:logistic", "multi:softprob", "reg:squarederror"])
def test_nor_do_the_sums_of_its_labels(totals, objective):
    people = members(objective)
    assert leave_out(LABELS, people, objective=objective).n_trees == 4
    y = people[VICTIM].rows.y
    own = [y.sum(), len(y)] if objective == "reg:squarederror" else [*np.bincount(y), len(y)]
    assert unlike(difference(totals, "labels"), own)


def test_nor_do_the_sizes_of_its_gradients(totals):
    people = members()
    leave_out(FIRST_BATCH, people)
    share = np.concatenate([one.rows.y for one in people]).mean()
    own = np.array([np.abs(share - people[VICTIM].rows.y).sum(), SIZES[VICTIM] * share * (1 - share)])
    sizes = difference(totals, "batch 0, start", first=32)[:2]
    assert (np.abs(sizes - own) > 0.02 * own).all()


def test_metrics_of_rows_that_all_train_on_are_not_sent_without_one_of_the_parties():
    model = leave_out(FIRST_BATCH, validation_fraction=0.3)
    assert all(record.train == {} for record in model.history)
    assert all({*record.validation} == {"logloss"} for record in model.history)
    all_back = leave_out(FIRST_BATCH, validation_fraction=0.3, back=True)
    assert all({*record.train} == {*record.validation} == {"logloss", "error"} for record in all_back.history)


# --- what is sent instead --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", range(8))
def test_the_others_go_on_wherever_a_party_is_lost(where):
    assert leave_out(where).n_trees == 4


def test_early_stopping_goes_on_without_one_of_the_parties():
    study = {"n_trees": 60, "learning_rate": 0.9, "validation_fraction": 0.3, "early_stopping_rounds": 2}
    model = leave_out(FIRST_BATCH, **study)
    watched = [record.validation["logloss"] for record in model.history[: model.n_trees + 2]]
    assert model.n_trees == watched.index(min(watched)) + 1 < len(watched)
    assert len(model.history) < 60


@pytest.mark.parametrize(("center", "spread"), [(0, 1), (2000, 10), (-1e4, 1), (1e-9, 1e-12)])
def test_coarse_moments_give_almost_the_same_grid(center, spread):
    parts = [np.random.default_rng(i).normal(center, spread, (200 + i, 1)).astype(np.float64) for i in range(3)]
    exact, rough = (
        common_scale(Moments(*np.sum([[*vars(of(_moments(X))).values()] for X in parts], axis=0)), 603)
        for of in (lambda own: own, coarse.moments)
    )
    assert abs(rough.mean - exact.mean) < 0.1 * spread
    assert 0.99 < rough.deviation / exact.deviation < 1.2


def test_a_column_that_does_not_vary_at_a_party_has_no_part_in_coarse_moments():
    own = _moments(np.array([[5.0, 1.0, np.nan], [5.0, 2.0, 7.0], [5.0, 3.0, np.nan]]))
    assert [[*part] for part in np.array([*vars(coarse.moments(own)).values()]) > 0] == [[False, True, False]] * 3


def test_early_stopping_watches_a_metric_with_little_noise():
    secret, sums = b"s" * 32, np.linspace(500.0, 300.0, 100)
    sent = coarse.metric(sums, 1000, secret)
    assert (sent == coarse.metric(sums, 1000, secret)).all()
    assert (sent != coarse.metric(sums, 1000, b"t" * 32)).all()
    away = (sent / sums - 1) * 1000  # in mean rows
    assert 1.5 < away.std() < 2.5
    assert (sent > 0).all()
