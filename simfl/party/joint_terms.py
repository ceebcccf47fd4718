"""The rules of a study whose trees are grown together. What follows from step to step is held in `joint.py`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from simfl import messages as msg
from simfl.params import declared_classes, is_private, with_numbers

if TYPE_CHECKING:
    from simfl.party.terms import Rules

TOGETHER: Final = (msg.StartTogether, msg.Add, msg.SendModel)
APART: Final = (  # what only the other recipes ask
    msg.SumFeatures,
    msg.Hash,
    msg.Match,
    msg.TakeSimilar,
    msg.Recall,
    msg.SumLabels,
    msg.Start,
    msg.Replay,
    msg.HashByTrees,
    msg.SumOntoRows,
    msg.Grow,
    msg.SumPerLeaf,
    msg.Finish,
)


def check_recipe(rules: Rules, question: msg.Request) -> None:
    """Refuse what another recipe than the study's would ask."""
    recipe = rules.terms.params.recipe
    foreign = APART if recipe == "joint" else TOGETHER
    rules.refuse_unless(not isinstance(question, foreign), f"the study's recipe is {recipe}")


def start(rules: Rules, question: msg.StartTogether) -> None:
    """Whether trees are grown as the study says, by those who exchanged keys."""
    terms = rules.terms
    wanted = with_numbers(terms.params, terms.schema.names if terms.schema else None, rules.n_features)
    for name in wanted.__struct_fields__:
        mine, theirs = getattr(wanted, name), getattr(question.params, name)
        open_seed = name == "random_state" and mine is None  # every party draws its own
        rules.refuse_unless(mine == theirs or open_seed, f"the study has {name} = {mine}, not {theirs}")
    present = question.parties
    rules.refuse_unless(present == [p for p in terms.parties if p in present], "parties are in the study's order")
    if is_private(terms.params):
        rules.refuse_unless(present == [*terms.parties], "with epsilon all parties take part: their noise is needed")
        rules.refuse_unless(question.classes == declared_classes(terms.params), "the classes are those of the study")
    few = f"at least {terms.min_parties} parties take part (min_parties)"
    rules.refuse_unless(len(present) >= terms.min_parties, few)
    if question.masked:
        rules.refuse_unless(tuple(sorted(present)) == rules.exchanged, "sums are over those who exchanged keys")
    rules.refuse_unless(question.masked or not terms.masked, "the study's sums are masked")
    rules.refuse_unless(not question.cuts_only, "a study agrees on its cuts when its training begins")
    rules.refuse_unless(not question.warm_start and not question.base_score, "a study begins from nothing")
    most = 10 * len(terms.parties)
    rules.refuse_unless(rules.starts < most, f"a training starts again at most {most} times")
    rules.check_classes(question.classes)
    classes = rules.first.setdefault(msg.StartTogether, question.classes)
    rules.refuse_unless(classes == question.classes, "a training starts alike, as the first time in this run")
    rules.starts += 1


def resumed(rules: Rules, decisions: list[bytes]) -> None:
    """Whether a training continues from what this party knows to be decided. Only the last batch can be grown again."""
    known = max(rules.settled, rules.decided[:-1], key=len)  # starts one after the other take back no more than one
    rules.refuse_unless(decisions[: len(known)] == known, "what was decided before stays decided")
    rules.settled, rules.decided = known, decisions  # the machine's own list: it grows with the training


def send_model(rules: Rules, question: msg.SendModel) -> None:
    """Whether the model goes to who may have it."""
    blind = rules.terms.params.masked is not False
    rules.refuse_unless(not blind or question.receiver is not None, "the hub does not get the model")


def finished(rules: Rules, *, is_finished: bool) -> None:
    """Whether the model is the one that all parties will have: a hub could hand out one of fewer trees, signed."""
    rules.refuse_unless(is_finished, "the model goes out when its training is finished")
