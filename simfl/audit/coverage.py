"""What an audit does not cover, in words: attacks that cannot be tried, and how its training differs from the study's.

None of it is a protection, so all of it stands in the result.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from scipy import sparse

from simfl.audit.findings import TITLES
from simfl.audit.scenario import Scenario

TWO_CLASSES: Final = ("labels_from_totals", "labels_from_equations", "canaries_from_values", "rows_from_all_trees")
FROM_SUMS: Final = ("labels_from_sums", "labels_of_known_people")
# Objectives whose first gradients are linear in the label.
LINEAR: Final = ("binary:logistic", "multi:softprob", "reg:squarederror", "count:poisson", "reg:gamma", "reg:tweedie")


def why_not(attack: str, scenario: Scenario) -> str | None:
    """Why an attack cannot be tried; None if it can."""
    if attack in TWO_CLASSES and not scenario.two_classes:
        return f"the attack knows labels of two classes only, and here is {scenario.objective}"
    if attack in TWO_CLASSES and scenario.stage_2.scale_pos_weight != 1:
        return "the attack knows rows that count once only, and here is scale_pos_weight"
    if attack in FROM_SUMS and scenario.objective not in LINEAR:
        return f"the attack cannot solve sums of the gradients of {scenario.objective} for labels"
    return None


def not_tried(attack: str, why: str) -> str:
    """The sentence on an attack that was left out."""
    return f"{TITLES[attack]} ({attack}): not tried, because {why}. This is no protection: another attacker may try it."


def differences(scenario: Scenario, params: Mapping[str, Any], *, of_model: bool) -> list[str]:
    """How what was attacked differs from what the parameters lead to. `of_model`: the finished model is attacked."""
    found = []
    if scenario.n_trees < scenario.most_trees:
        found.append(
            f"The study grows up to {scenario.most_trees} rounds of trees, the audit {scenario.n_trees}. More trees "
            "tell more, above all where noise averages out."
        )
    if scenario.weight is not None and (of_model or scenario.stage_2.epsilon is not None):
        what = "Attacks on the finished model" if scenario.stage_2.epsilon is None else "These attacks"
        found.append(f"{what} count every row as one: weights are left out of the models that they train.")
    if of_model and sparse.issparse(scenario.X):
        found.append(
            "The table is sparse. Attacks on the finished model take absent values for zeros, the study for missing."
        )
    return found
