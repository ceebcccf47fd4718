"""Is this person in the model? Membership inference from a model's answers, with shadow models.

Shadow models are trained on random halves of the people asked about, so that each is in about half of them. A person
is a member if the model's answer about it is more likely under the shadows that had it than under those that had not:
LiRA (Carlini et al. 2022), online (both kinds of shadows) and offline (only those without). `rmia` is the relative
ratio of Zarifzadeh et al. (2312.03262), which needs few shadows. An answer counts by its confidence: the log odds of
the true label, which are roughly normal.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import special, stats

from simfl.arrays import AnyArray, Doubles, Mask
from simfl.report.bootstrap import RESAMPLINGS
from simfl.training.losses import Loss

FALSE_ALARMS = 0.01  # at which the share of members that are found is counted
FEWEST = 2  # shadows of each kind: fewer have no mean to speak of


@dataclass(frozen=True)
class Shadows:
    """Per shadow and person: how confident it is of the true label, and whether it was trained on that person."""

    confidence: Doubles
    inside: Mask

    def means(self, which: Mask) -> Doubles:
        """Per person: the mean over some shadows; over all where there are too few."""
        n = which.sum(axis=0)
        mean = np.where(which, self.confidence, 0.0).sum(axis=0) / np.maximum(n, 1)
        return np.asarray(np.where(n >= FEWEST, mean, self.confidence.mean(axis=0)))

    def deviation(self, which: Mask) -> float:
        """Of a shadow's confidence from its mean: one for all people, as few shadows cannot tell them apart."""
        gaps = (self.confidence - self.means(which))[which]
        return float(np.sqrt((gaps**2).mean())) + 1e-6 if gaps.size else 1.0

    def aligned(self, confidence: Doubles) -> Doubles:
        """The model's confidence on the scale of the shadows, which may be of another recipe."""
        mean = self.confidence.mean(axis=0)
        if mean.std() < 1e-9 or confidence.std() < 1e-9:
            return confidence
        slope, offset = np.polyfit(mean, confidence, 1)
        return np.asarray((confidence - offset) / slope if slope > 1e-3 else confidence)


def lira(shadows: Shadows, confidence: Doubles) -> Doubles:
    """Online: the log of how much likelier an answer is if the person is a member."""
    member, stranger = (
        stats.norm.logpdf(confidence, shadows.means(which), shadows.deviation(which))
        for which in (shadows.inside, ~shadows.inside)
    )
    return np.asarray(member - stranger)


def lira_offline(shadows: Shadows, confidence: Doubles) -> Doubles:
    """Offline: how far an answer is above those of models that do not know the person."""
    outside = ~shadows.inside
    return np.asarray((confidence - shadows.means(outside)) / shadows.deviation(outside))


def rmia(shadows: Shadows, confidence: Doubles) -> Doubles:
    """The log ratio of the model's probability of the label to the mean of the shadows'."""
    return np.asarray(special.log_expit(confidence) - np.log(special.expit(shadows.confidence).mean(axis=0) + 1e-12))


def auc(members: Doubles, strangers: Doubles) -> float:
    """The chance that a member scores above a stranger; ties count half.

    >>> auc(np.array([2.0, 1.0]), np.array([1.0, 0.0])), auc(np.ones(3), np.ones(4))
    (0.875, 0.5)
    """
    m, s = len(members), len(strangers)
    ranks = stats.rankdata(np.concatenate([members, strangers]))[:m]
    return float((ranks.sum() - m * (m + 1) / 2) / (m * s))


def found_share(members: Doubles, strangers: Doubles, false_alarms: float = FALSE_ALARMS) -> float:
    """The share of members above a score that at most this share of strangers is above.

    >>> found_share(np.array([3.0, 2.0, 0.0, 0.0]), np.array([2.5, 1.0, 0.0, 0.0]), false_alarms=0.25)
    0.5
    """
    allowed = int(false_alarms * len(strangers))
    return float((members > np.sort(strangers)[len(strangers) - 1 - allowed]).mean())


def measured(members: Doubles, strangers: Doubles, seed: int = 0) -> dict[str, float]:
    """AUC and the share found at 1 % false alarms, each with its 95 % interval by resampling people."""
    rng = np.random.default_rng([seed, 33])
    draws = np.empty((RESAMPLINGS, 2))
    for at in range(RESAMPLINGS):
        drawn = [scores[rng.integers(0, len(scores), len(scores))] for scores in (members, strangers)]
        draws[at] = auc(drawn[0], drawn[1]), found_share(drawn[0], drawn[1])
    low, high = np.percentile(draws, (2.5, 97.5), axis=0).tolist()
    found = {"auc": auc(members, strangers), "tpr": found_share(members, strangers)}
    return found | {"auc_low": low[0], "auc_high": high[0], "tpr_low": low[1], "tpr_high": high[1]}


def answers_right(scores: Doubles, members: Mask, rng: np.random.Generator) -> Doubles:
    """Per person: whether "the better half are members" is right about it; ties are drawn."""
    order = np.lexsort((rng.random(len(scores)), scores))
    said = np.zeros(len(scores), dtype=bool)
    said[order[len(scores) - int(members.sum()) :]] = True
    return np.asarray(said == members, dtype=np.float64)


def label_confidence(margins: AnyArray, y: AnyArray, loss: Loss) -> Doubles:
    """How confident answers are of the true label.

    Of a class: its log odds. Of a number: minus the log of the squared error. Of a time between bounds: the log of its
    chance.
    """
    if loss.is_multi:
        logs = special.log_softmax(margins.astype(np.float64), axis=1)
        own = logs[np.arange(len(y)), y.astype(np.int64)]
        return np.asarray(own - np.log(-np.expm1(np.minimum(own, -1e-9))))
    if loss.classifies:
        return np.asarray((2 * y - 1) * margins, dtype=np.float64)
    if loss.labels == "bounds":
        return -loss.row_losses(margins[:, None], y)[loss.metrics[0]]
    error = (loss.predicted(margins) - y).astype(np.float64)
    return np.asarray(-np.log(error**2 + 1e-6 * float(np.var(y)) + 1e-12))
