"""A party's rows under differential privacy (joint with epsilon): what must be declared, and which rows take part.

Nothing of a table may decide what is sent before the noise: a fact that is not declared is refused, with the words that
declare it.
"""

from __future__ import annotations

from dataclasses import replace

from simfl import messages as msg
from simfl.data.schema import Column
from simfl.errors import DataError, ParameterError, PrivacyError
from simfl.joint.drawn import LEVELS_DEPTH
from simfl.joint.private import Budget
from simfl.joint.private_rule import PrivateSettings, private_rule
from simfl.params import MOST_CUTS, PrivateParams, declared_classes, is_private
from simfl.party.party import Party, Split
from simfl.privacy.discrete import VARIANCE
from simfl.privacy.guarantee import MOST_VALUES, longest, not_colluding
from simfl.training.losses import is_multi


def check_declared(party: Party) -> None:
    """Refuse a table of which something would have to be asked."""
    if party.schema is None or not party.declared:
        raise _refusal(
            f"{party} has columns that nobody has declared, and with epsilon nobody may ask for them. Declare them in "
            "[columns] of the study, or give schema=Schema.from_toml({...}) (simfl.data.schema) to every Party, or to "
            "fit."
        )
    for column in party.schema.columns:
        if not column.range and column.kind not in ("boolean", "category"):
            raise _refusal(_without_range(party, column))


def _without_range(party: Party, column: Column) -> str:
    return (
        f"{party} has the column {column.name!r} without a range, and with epsilon nobody may ask where its values "
        f"lie. Write {column.name} = {{ low = ..., high = ... }} in [columns] of the study (or in the parties' schema)."
    )


def _refusal(fact: str) -> DataError:
    return DataError(fact, public=fact)


def limited(split: Split, params: PrivateParams) -> Split:
    """The rows that take part: no more of a person than the study allows. A heavy row has used itself up sooner."""
    rows, most = split.training, params.max_rows_per_person
    if most is not None:
        kept = rows.limited(most)
        if kept is None:
            raise _refusal(
                f"{split.who} does not say whose row it is, and the study has max_rows_per_person = {most}. Name the "
                'column in its party.toml, as in person = "patient", or give Party(..., person=...).'
            )
        rows = kept
    return replace(split, training=rows)


def check_hidden(start: msg.StartTogether, who: str) -> None:
    """Noise that parties share out hides nothing without masks."""
    n, params = len(start.parties), start.params
    if is_private(params) and not start.masked and not_colluding(params, n) > 1:
        raise PrivacyError(
            f"{who} refuses: with colluding = {params.colluding} it adds a part of the noise only, which needs "
            "masks. Set masked to true, or leave colluding out."
        )


def settings(params: PrivateParams, n_parties: int, n_columns: int) -> PrivateSettings:
    """What the rule chooses for a study; what the study sets itself is as it says."""
    own = budget(params, n_parties)
    shared = own.noise / (VARIANCE * not_colluding(params, n_parties)) ** 0.5
    multiplier = own.noise / shared / own.longest
    chosen = private_rule(multiplier, shared, params.rows or 1, n_columns, _shares(params))
    return _as_given(chosen, params)


def check_size(chosen: PrivateSettings, n_columns: int, n_outputs: int) -> None:
    """Refuse more sums than the account was made for."""
    leaves = chosen.n_trees * 2**chosen.depth + n_columns * 2**LEVELS_DEPTH
    if 2 * n_outputs * leaves + n_columns * MOST_CUTS > MOST_VALUES:
        raise ParameterError(
            f"{chosen.n_trees} trees of depth {chosen.depth} have more sums than epsilon was counted for. Lower "
            "n_trees or max_depth."
        )


def _as_given(chosen: PrivateSettings, params: PrivateParams) -> PrivateSettings:
    """With what the study sets itself; what the rule made for its own number of trees is made for that of the study."""
    names = {"n_trees": "n_trees", "max_depth": "depth", "learning_rate": "learning_rate", "reg_lambda": "reg_lambda"}
    given = {rule: getattr(params, name) for name, rule in names.items() if name not in params.by_rule}
    trees = given.get("n_trees", chosen.n_trees) / chosen.n_trees
    fitted = {name: getattr(chosen, name) * trees**0.5 for name in ("count_scale", "first_scale")}
    fitted |= {"reg_lambda": chosen.reg_lambda * trees}
    return replace(chosen, **fitted | given)


def _shares(params: PrivateParams) -> list[float]:
    """Of the classes, as far as the study declares them."""
    n, positive = len(declared_classes(params)), params.base_score
    if positive is None or is_multi(params.objective) or not 0 < positive < 1:
        return [1.0 / n] * n
    return [1.0 - positive, positive]


def budget(params: PrivateParams, n_parties: int) -> Budget:
    """How long a row's vectors may be, and the noise of all parties together."""
    return Budget(longest(params, n_parties), (VARIANCE * n_parties) ** 0.5)
