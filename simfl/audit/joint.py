"""The trials of trees grown together: what each role makes of totals over all parties, counted beside guessing.

The attacks are in `totals.py`, what is heard in `listening.py`, the run in `together.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegression

from simfl.arrays import Doubles, Floats, Longs
from simfl.audit.attributes import share_right
from simfl.audit.findings import Counted, Finding, Role, Setting, finding
from simfl.audit.listening import STRANGER
from simfl.audit.scenario import VICTIM
from simfl.audit.together import Listener, Together
from simfl.audit.totals import Found
from simfl.audit.trials import ATTRIBUTES, LABELS_RIGHT, rows_from_trees, values_from_trees

FALSE_ALARMS = 0.01


def rows_from_totals(scenario: Together, setting: Setting) -> list[Finding]:
    """Foreign rows that a combination of sums singles out. Guessing: none."""
    return [_rows_alone(scenario, listener) for listener in scenario.listeners]


def _rows_alone(scenario: Together, listener: Listener) -> Finding:
    alone = scenario.ears[listener.parties].alone
    rows, gradient = _added(alone.found)
    success = np.zeros(len(alone.foreign))
    success[rows] = 1.0
    details = {"rows": float(len(rows))}
    if scenario.two_classes and len(rows):
        y, margin = scenario.people.y[alone.foreign[rows]], scenario.margin[alone.foreign[rows], 0]
        details |= {"labels right": float(((gradient < 0) == (y > 0)).mean())}
        details |= {"labels right, by the model": float(((margin > 0) == (y > 0)).mean())}
    sentence = (
        f"Over {scenario.trees_in_words} {{success}} of {len(success)} foreign rows are singled out by a "
        "combination of the sums of a tree, or by two boxes of trees that grow side by side."
    )
    if "labels right" in details:
        sentence += (
            f" The sign of what is left gives {details['labels right']:.0%} of their labels (the model alone: "
            f"{details['labels right, by the model']:.0%})."
        )
    counted = Counted(success, np.zeros(len(success)), details)
    return finding("rows_from_totals", [listener.role], counted, sentence, "rows singled out")


def _added(found: Sequence[Found]) -> tuple[Longs, Doubles]:
    """Each row that was found once, with the total of what was found of its gradient."""
    rows = np.concatenate([np.zeros(0, np.int64), *(each.rows for each in found)])
    gradient = np.concatenate([np.zeros(0), *(each.gradient for each in found)])
    different, which = np.unique(rows, return_inverse=True)
    return different, np.bincount(which, gradient, len(different)).astype(np.float64)


def attributes_from_totals(scenario: Together, setting: Setting) -> list[Finding]:
    """The mean of own rows in the same node stands for a row that was singled out."""
    findings = []
    for listener in scenario.listeners:
        alone = scenario.ears[listener.parties].alone
        like: dict[int, Longs] = {}
        for found in alone.found:
            for row, near in zip(found.rows.tolist(), found.like, strict=True):
                if len(near) and len(near) < len(like.get(row, scenario.row)):  # the fewer, the smaller the node
                    like[row] = near
        if not like:
            continue
        near_rows = [scenario.dense[scenario.row[near]] for near in like.values()]
        estimate = np.stack([scenario.prior.standard(rows).mean(axis=0) for rows in near_rows])
        truth = scenario.prior.standard(scenario.dense[scenario.row[alone.foreign[list(like)]]])
        success, guess = (share_right(e, truth, scenario.attributes) for e in (estimate, np.zeros_like(truth)))
        sentence = f"Of rows that were singled out, own rows in the same node give {ATTRIBUTES}; guessing, {{guess}}."
        findings.append(finding("attributes_from_totals", [listener.role], Counted(success, guess, {}), sentence))
    return findings


def members_from_totals(scenario: Together, setting: Setting) -> list[Finding]:
    """Tell members from strangers by all sums that they would be part of."""
    findings = []
    for listener in scenario.listeners if scenario.has_likely_strangers else []:
        evidence = scenario.ears[listener.parties].evidence
        known = np.column_stack([evidence.scores[:, :2], scenario.fit[evidence.asked]])
        counted = _told_apart(scenario, listener.parties, evidence.asked, known)
        sentence = (
            f"Given a person's record and label, the model and the sums of {scenario.trees_in_words} show with "
            "{success} accuracy whether it took part (guessing: {guess}); at 1 % false alarms "
            f"{counted.details['found at 1 % false alarms']:.1%} of the members are found."
        )
        findings.append(finding("members_from_totals", [listener.role], counted, sentence, "right answers"))
    return findings


def members_from_model(scenario: Together, setting: Setting) -> list[Finding]:
    """The same from the finished model alone, which everybody has."""
    if not scenario.has_likely_strangers:
        return []
    listener = scenario.listeners[0]
    asked = scenario.ears[listener.parties].evidence.asked
    counted = _told_apart(scenario, listener.parties, asked, scenario.fit[asked][:, None])
    sentence = (
        f"Given a person's record and label, the model of {scenario.trees_in_words} alone shows with {{success}} "
        "accuracy whether it took part (guessing: {guess})."
    )
    roles: list[Role] = ["submitter", "outsider"]
    return [finding("members_from_model", roles, counted, sentence, "right answers")]


def _told_apart(scenario: Together, parties: tuple[int, ...], asked: Longs, known: Doubles) -> Counted:
    """Learn from own rows and one half of the strangers; tell the victim's rows from the other half. Both ways."""
    party = scenario.people.party[asked]
    own, victim = np.flatnonzero(np.isin(party, parties)), np.flatnonzero(party == VICTIM)
    strangers = np.flatnonzero(party == STRANGER)
    n = min(len(victim), len(strangers)) // 2
    scaled = known / np.maximum(known.std(axis=0), 1e-12)
    success, areas, found = [], [], []
    for half in (0, 1):
        members, outside, rehearsed = victim[half::2][:n], strangers[half::2][:n], strangers[1 - half :: 2]
        both, truth = np.concatenate([own, rehearsed]), np.repeat([1, 0], [len(own), len(rehearsed)])
        learned = LogisticRegression(class_weight="balanced").fit(scaled[both], truth)
        inside, other = (learned.decision_function(scaled[rows]) for rows in (members, outside))
        success.append(((inside > 0).astype(np.float64) + (other <= 0)) / 2)
        areas.append(float((inside[:, None] > other).mean()))
        found.append(float((inside > np.quantile(other, 1 - FALSE_ALARMS)).mean()))
    details = {"area under the curve": float(np.mean(areas)), "found at 1 % false alarms": float(np.mean(found))}
    return Counted(np.concatenate(success), np.full(2 * n, 0.5), details)


def labels_from_totals(scenario: Together, setting: Setting) -> list[Finding]:
    """The label of a person whose features are known, from the sums that it is part of and the model."""
    findings = []
    for listener in scenario.listeners:
        evidence = scenario.ears[listener.parties].evidence
        asked, y = evidence.asked, scenario.people.y[evidence.asked]
        party = scenario.people.party[asked]
        own, victim = np.isin(party, listener.parties), party == VICTIM
        margin, sums = scenario.margin[asked], evidence.scores[:, 2:]
        guess, success = (_labels_right(known, y, own, victim) for known in (margin, np.hstack([margin, sums])))
        sentence = (
            "A party that knows all features of a person gets the label right in {success} of all cases with the sums "
            f"that it is part of and the model of {scenario.trees_in_words}; with the model alone, in {{guess}}."
        )
        counted = Counted(success, guess, {})
        findings.append(finding("labels_from_totals", [listener.role], counted, sentence, LABELS_RIGHT))
    return findings


def _labels_right(known: Any, y: Floats, own: Any, victim: Any) -> Doubles:
    """Learned on own rows."""
    if len(np.unique(y[own])) < 2:
        return np.asarray(y[victim] == y[own][0], dtype=np.float64)
    scaled = known / np.maximum(known.std(axis=0), 1e-12)
    learned = LogisticRegression().fit(scaled[own], y[own])
    return np.asarray(learned.predict(scaled[victim]) == y[victim], dtype=np.float64)


def labels_from_equations(scenario: Together, setting: Setting) -> list[Finding]:
    """Whoever knows the features of all foreign rows has an equation per sum."""
    findings = []
    for listener in scenario.listeners:
        equations = scenario.ears[listener.parties].equations
        if equations is None:
            continue
        y = scenario.people.y[equations.foreign] > 0
        belief = 1 / (1 + np.exp(-scenario.margin[equations.foreign, 0].astype(np.float64)))
        labels = equations.labels(belief)
        success, guess = (((p > 0.5) == y).astype(np.float64) for p in (labels, belief))
        sentence = (
            "A party that knows the features of all foreign rows solves for their labels: {success} right; with the "
            "model alone, {guess}. No protection but noise prevents this, in any recipe."
        )
        counted = Counted(success, guess, {})
        findings.append(finding("labels_from_equations", [listener.role], counted, sentence, LABELS_RIGHT))
    return findings


TRIALS: list[Callable[[Any, Setting], list[Finding]]] = [
    rows_from_totals,
    attributes_from_totals,
    members_from_totals,
    members_from_model,
    labels_from_totals,
    labels_from_equations,
    rows_from_trees,
    values_from_trees,
]
