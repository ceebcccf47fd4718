"""Before both stages: tables that fit together, one order of columns, and keys between the parties.

Keys take three hops: every party draws a key pair and sends the public half; the first of them gets all public keys and
seals a secret for each other party; the others get the keys and what was sealed for them. The hub learns neither keys
nor secret.
"""

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from simfl import messages as msg
from simfl.data.schema import Column, Schema, agree
from simfl.errors import DataError, PrivacyError
from simfl.hub.asking import ask_all, ask_each, refuse_unless, sent_by
from simfl.params import Params, is_private
from simfl.transport.base import Transport


def fresh_seed(random_state: int | None) -> int:
    """The given seed, or a new one."""
    return int(np.random.SeedSequence().entropy) % 2**63 if random_state is None else random_state  # type: ignore[arg-type]


# --- tables ----------------------------------------------------------------------------------------------------------


def describe(
    transport: Transport, params: Params, seed: int, agreed: Schema | None = None
) -> dict[str, msg.Description]:
    """Have every party describe its table. Refuses tables that do not fit together, and settles on common columns.

    `agreed`: the columns that all parties settled on before, also those that are not present now.
    """
    described = ask_all(transport, description_request(params, seed), msg.Description)
    for party, reply in described.items():
        with sent_by(party):
            refuse_unless(reply.n_rows > 0 or is_private(params), "a table without rows")
    check_same_form(described)
    own = {party: Schema(tuple(d.columns)) for party, d in described.items() if d.columns is not None}
    if not own:
        return described
    agreed = agreed or agree(own)
    settle(transport, agreed, [party for party, schema in own.items() if schema != agreed])
    return {party: msgspec.structs.replace(d, columns=list(agreed.columns)) for party, d in described.items()}


def description_request(params: Params, seed: int) -> msg.Describe:
    """The question for a party's table."""
    share = params.validation_fraction
    return msg.Describe(version=msg.VERSION, validation_fraction=share, seed=seed, private=is_private(params))


def settle(transport: Transport, schema: Schema, parties: Sequence[str]) -> None:
    """Have these parties read their tables through the schema that all agreed on."""
    ask_each(transport, dict.fromkeys(parties, msg.Settle(columns=list(schema.columns))), msg.Done)


def check_same_form(described: Mapping[str, msg.Description]) -> None:
    """Refuse parties whose tables do not have the same columns; all differences in one message."""
    name, first = next(iter(described.items()))
    wrong = [f"{other!r} ({fact})" for other, d in described.items() if (fact := _difference(first, d))]
    if wrong:
        raise DataError(
            f"These parties have other columns than {name!r}: {', '.join(wrong)}. "
            "Give every party the same columns, all dense or all sparse; without names also in the same order."
        )


def _difference(first: msg.Description, other: msg.Description) -> str:
    """How a table differs from the first one, in words; empty if it does not."""
    if names := _other_names(first.columns, other.columns):
        return names
    if other.n_features != first.n_features:
        return f"{other.n_features} features, not {first.n_features}"
    if other.is_sparse != first.is_sparse:
        return f"a {'sparse' if other.is_sparse else 'dense'} table: its zeros mean something else"
    if (other.columns is None) != (first.columns is None):
        return f"columns {'without' if other.columns is None else 'with'} names"
    return ""


def _other_names(first: list[Column] | None, own: list[Column] | None) -> str:
    """Which names are missing and which are extra, in words."""
    if first is None or own is None:
        return ""
    names, others = [c.name for c in own], [c.name for c in first]
    missing, extra = [c for c in others if c not in names], [c for c in names if c not in others]
    return "; ".join([f"missing: {missing}"] * bool(missing) + [f"extra: {extra}"] * bool(extra))


# --- keys ------------------------------------------------------------------------------------------------------------


class MaskSteps:
    """Counts the steps of masked sums. The masks themselves are known to the parties only."""

    def __init__(self, parties: Sequence[str] = ()) -> None:
        self.parties, self.step = list(parties), -1

    @property
    def on(self) -> bool:
        """Whether sums are masked at all."""
        return bool(self.parties)

    def next(self) -> msg.Masking | None:
        """The next step's; None if sums are not masked."""
        self.step += 1
        return self.now()

    def now(self) -> msg.Masking | None:
        """That of the step under way."""
        return msg.Masking(step=self.step, parties=self.parties) if self.on else None


def exchange_keys(transport: Transport) -> None:
    """Let all parties that are present agree on new keys."""
    drawn = ask_all(transport, msg.DrawKey(), msg.PublicKey)
    keys = {party: reply.public for party, reply in drawn.items()}
    first = next((party for party, reply in drawn.items() if reply.has_secret), transport.parties[0])
    others = [party for party in transport.parties if party != first]
    question = msg.TakeKeys(keys=keys, first=first, sealed=None)
    sealed = ask_each(transport, {first: question}, msg.SealedSecret)[first].sealed
    with sent_by(first):  # nothing is sealed where every party has the secret already
        refuse_unless(not sealed or set(sealed) == set(others), f"a secret sealed for {sorted(sealed)}")
    questions = {party: msgspec.structs.replace(question, sealed=sealed.get(party)) for party in others}
    ask_each(transport, questions, msg.SealedSecret)


def agree_on_masks(
    transport: Transport, params: Params, *, share_secret: bool = False, n_parties: int = 0
) -> MaskSteps:
    """Exchange keys if sums are to be masked. New keys each time: no mask of before fits.

    Keys are exchanged, too, if a secret is to be shared: whoever is new gets it. `n_parties` began the training.
    """
    wanted = transport.deployed if params.masked is None else params.masked
    several = len(transport.parties) > 1
    if wanted and not several and n_parties > 1:
        raise PrivacyError(
            f"Only party {transport.parties[0]!r} is left: its sums would not be hidden among others. "
            "Wait for the others, or allow it with masked=false."
        )
    if several and (wanted or share_secret):
        exchange_keys(transport)
    return MaskSteps(transport.parties if wanted and several else ())


def have_a_secret(described: Mapping[str, msg.Description]) -> bool:
    """Whether all parties already share one secret; different ones are refused."""
    found = {party: d.secret for party, d in described.items() if d.secret is not None}
    if len(set(found.values())) > 1:
        first = next(iter(found))
        others = [party for party, secret in found.items() if secret != found[first]]
        raise DataError(
            f"These parties have another common secret than {first!r}: {others}. "
            "Give all parties the same secret, or none: then they agree on one."
        )
    return len(found) == len(described)
