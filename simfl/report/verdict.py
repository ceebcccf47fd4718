"""The verdict of a comparison, in sentences: for whom it is worth it, on that party's own rows first, then on all.

A gain counts only if its interval lies above zero. A party that loses, or has to do something first, learns what to do.
"""

import math
from collections.abc import Iterable, Mapping, Sequence

from simfl.report.record import Gain
from simfl.report.words import METRICS, decimals

MOST_NAMES = 6  # in one sentence


def main_gains(gains: Iterable[Gain], metric: str | None) -> tuple[list[Gain], list[Gain]]:
    """The gains in this metric: on a party's own held-out rows with the adjusted model, and on those of all parties."""
    found = [gain for gain in gains if gain.metric == metric]
    return [gain for gain in found if gain.adjusted], [gain for gain in found if gain.rows is None]


def verdict(gains: Sequence[Gain], metric: str | None) -> list[str]:
    """What the gains say; nothing where none was measured."""
    own, on_all = main_gains(gains, metric)
    if not own:
        return []
    at_home = [g for g in gains if g.metric == metric and g.rows is not None and not g.adjusted]
    as_it_is = {g.party: g for g in at_home if not g.continued}
    continued = {g.party: g for g in at_home if g.continued}
    said = [_on_own_rows(own), *_advice(own, as_it_is, continued)]
    return [*said, f"On held-out rows of all parties {_on_all(on_all)}"] if on_all else said


def _on_own_rows(own: Sequence[Gain]) -> str:
    sure, lost = [g for g in own if g.low > 0], [g for g in own if g.high < 0]
    unclear = [g for g in own if g not in sure and g not in lost]
    if len(unclear) == len(own):
        return f"Too close to tell whether it is worth it: the held-out rows of {_named(own)} are too few."
    parts = [f"Worth it for {len(sure)} of {len(own)} parties{_by(sure)}"] if len(own) > 1 else []
    parts += [f"Worth it{_by(sure)}"] if len(own) == 1 and sure else []
    parts += [f"not worth it for {_named(lost)}: alone it predicts better"] if lost else []
    parts += [f"for {_named(unclear)} the held-out rows are too few to tell"] if unclear else []
    text = "; ".join(parts)
    return f"{text[:1].upper()}{text[1:]}."


def _by(sure: Sequence[Gain]) -> str:
    """Who gains how much."""
    if not sure:
        return ""
    whose = "its own held-out rows" if len(sure) == 1 else "their own held-out rows"
    return f" ({_names(sure)}): on {whose} the {METRICS[sure[0].metric]} falls by {_span(sure)}"


def _span(gains: Sequence[Gain]) -> str:
    """How far the metric falls: in percent, or as numbers where zero means nothing (log likelihoods)."""
    if "nloglik" in gains[0].metric:
        cut, unit, digits = sorted(g.gain for g in gains), "", 3
    else:  # a sure gain is above zero, so the loss alone is too
        cut, unit, digits = sorted(_percent(g) for g in gains), " %", 0
    low, high = f"{cut[0]:.{digits}f}", f"{cut[-1]:.{digits}f}"
    return f"{low if low == high else f'{low} to {high}'}{unit}"


def _percent(gain: Gain) -> float:
    return 100 * gain.gain / gain.alone if math.isfinite(gain.alone) else 100.0  # what was infinite is gone


def _named(gains: Sequence[Gain]) -> str:
    """Parties with their gains, with the decimals of the losses; a gain that would be shown as zero has its own.

    >>> few = {"rows": "a", "metric": "error", "alone": 0.5, "together": 0.4, "low": 0.0, "high": 0.2, "n_rows": 9}
    >>> _named([Gain(party="a", gain=0.1, **few)])
    'a (+0.100)'
    """
    digits = decimals([value for g in gains for value in (g.alone, g.together)])
    return _joined([f"{g.party} ({_signed(g.gain, digits)})" for g in gains])


def _signed(gain: float, digits: int) -> str:
    return f"{gain:+.2g}" if 0 < abs(gain) < 0.5 * 10**-digits else f"{gain:+.{digits}f}"


def _names(gains: Sequence[Gain]) -> str:
    return _joined([g.party for g in gains])


def _joined(words: Sequence[str]) -> str:
    """Words as a list in a sentence.

    >>> _joined(["a"]), _joined(["a", "b", "c"])
    ('a', 'a, b and c')
    """
    if len(words) > MOST_NAMES:
        words = [*words[:MOST_NAMES], f"{len(words) - MOST_NAMES} others"]
    return " and ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else words[0]


def _advice(own: Sequence[Gain], as_it_is: Mapping[str, Gain], continued: Mapping[str, Gain]) -> list[str]:
    """What a party should do that loses, or that would lose with the model as it is."""
    more = [g for g in own if _continues(g, continued.get(g.party))]
    own = [g for g in own if g not in more]
    adjust = [g for g in own if g.high >= 0 and g.gain > 0 > as_it_is[g.party].gain]
    leave = [g for g in own if g.high < 0 < as_it_is[g.party].gain]
    stay_out = [g for g in own if g.high < 0 and g not in leave]
    said = []
    if adjust:
        said.append(
            f"{_names(adjust)}: adjust the shared model before use (model.adjusted); as it is, it came out worse there."
        )
    if leave:
        said.append(
            f"{_names(leave)}: use the shared model as it is; adjusting it (model.adjusted) makes it worse there."
        )
    if more:
        at_home = _named([continued[g.party] for g in more])
        how = "continue the shared model at home (model.continued)"
        said.append(f"{_names(more)}: {how}; on own held-out rows the gain is then sure: {at_home}.")
    if stay_out:
        said.append(f"{_names(stay_out)}: stay out, or keep using your own model.")
    return said


def _continues(adjusted: Gain, continued: Gain | None) -> bool:
    """Whether a party does better to continue the model: where adjusting it is no sure gain, and this is one."""
    return continued is not None and adjusted.low <= 0 < continued.low


def _on_all(gains: Sequence[Gain]) -> str:
    sure, lost = sum(g.low > 0 for g in gains), sum(g.high < 0 for g in gains)
    metric = METRICS[gains[0].metric]
    if sure == len(gains):
        who = "the shared model is better than every party's own" if len(gains) > 1 else "the shared model is better"
        return f"{who}: {metric} lower by {_span(gains)}."
    parts = [f"the shared model is better than the own ones of {sure} of {len(gains)} parties ({metric})"]
    unclear = len(gains) - sure - lost
    parts += [f"too close to tell for {unclear}"] * bool(unclear)
    parts += [f"worse for {lost}"] * bool(lost)
    return "; ".join(parts) + "."
