"""Advice: which n_hashes or bucket_width would keep an attack on the hashing close to guessing."""

from bisect import bisect_left
from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeVar

import numpy as np

from simfl.audit import trials
from simfl.audit.findings import TITLES, Advice, Counted, Setting
from simfl.audit.scenario import HashedRows, Scenario
from simfl.params import guarded_columns
from simfl.privacy.guard import default_hashes

ROWS = 150  # fewer than in the audit, to save time,
DRAWS = 2  # but with several draws of the hash functions: one set of directions and offsets can be lucky
DEFAULT_LIMIT = 0.1
WIDTHS = tuple(2.0 ** (step / 2) for step in range(-4, 17))  # times the chosen bucket_width

Option = TypeVar("Option")
Measure = Callable[[HashedRows], Counted]


def advise(scenario: Scenario, setting: Setting, limits: Mapping[str, float]) -> list[Advice]:
    """For each attack on the hashing: the most hashes and the narrowest buckets that keep it within its limit."""
    measures = _measures(scenario, setting)
    return [_advise(scenario, attack, limits.get(attack, DEFAULT_LIMIT), m) for attack, m in measures.items()]


def _measures(scenario: Scenario, setting: Setting) -> dict[str, Measure]:
    """The attacks that hashes and buckets have an influence on."""
    rows = scenario.sample[:ROWS]
    if setting.matching == "blind":
        return {
            "rows_from_tokens": partial(trials.map_tokens, scenario, rows=rows, prior=scenario.prior),
            "rows_from_pointers": partial(trials.follow_pointers, scenario),
        }
    found: dict[str, Measure] = {
        "rows_from_codes": partial(trials.invert, scenario, rows=rows, n_rehearsed=ROWS),
        "members_from_codes": partial(trials.recognise, scenario, rows=rows),
    }
    if scenario.X.shape[1] <= trials.MOST_COLUMNS:
        found["attribute_from_codes"] = partial(trials.complete, scenario, rows=rows)
    return found


def _advise(scenario: Scenario, attack: str, limit: float, measure: Measure) -> Advice:
    n, width = scenario.hashed.n_hashes, scenario.hashed.hashing.width

    def within(n_hashes: int, bucket_width: float) -> bool:
        counted = [measure(scenario.hash(n_hashes, bucket_width, draw)) for draw in range(DRAWS)]
        return float(np.mean([each.excess.mean() for each in counted])) <= limit

    most = max(n, default_hashes(guarded_columns(scenario.stage_1, scenario.X.shape[1])))
    fewer = first_within(list(range(most, 0, -1)), lambda n_hashes: within(n_hashes, width))
    wider = first_within([width * times for times in WIDTHS], lambda bucket_width: within(n, bucket_width))
    hashes = f"at most {fewer} hashes with buckets of" if fewer else "no number of hashes does at"
    buckets = f"buckets of at least {wider:.3g} with {n} hashes" if wider else "no bucket width that was tried does"
    return Advice(
        attack=attack,
        title=TITLES[attack],
        max_excess=limit,
        n_hashes=fewer,
        bucket_width=wider,
        sentence=f"To keep it within {100 * limit:.0f} points of guessing: {hashes} {width:.3g}; or {buckets}.",
    )


def first_within(options: list[Option], holds: Callable[[Option], bool]) -> Option | None:
    """The first option that holds, where all after it hold too; None if the last does not. By bisection.

    >>> first_within([5, 4, 3, 2, 1], lambda n: n * n < 10)
    3
    """
    if not holds(options[-1]):
        return None
    return options[bisect_left(options, True, hi=len(options) - 1, key=holds)]
