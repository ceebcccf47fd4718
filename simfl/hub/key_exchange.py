"""The parties meet: they agree on keys and on a common secret, over a hub that learns neither.

Three hops, once per training: every party names its public key; the first of them gets all keys and seals a secret for
each other; the others get the keys and what was sealed for them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from simfl import messages as msg
from simfl import wire
from simfl.errors import DataError
from simfl.transport.base import Transport


def meet(transport: Transport) -> None:
    """Let all parties that are there agree on keys, anew."""
    keys = {
        party: wire.expect(msg.Introduced, reply, party).public
        for party, reply in transport.ask_all(dict.fromkeys(transport.parties, msg.Introduce())).items()
    }
    first, others = transport.parties[0], transport.parties[1:]
    keys = {party: keys[party] for party in transport.parties}
    question = msg.Meet(keys=keys, first=first, sealed=None)
    met = wire.expect(msg.Met, transport.ask_all({first: question})[first], first)
    _check_addressees(met.sealed, others, first)
    questions = {party: msg.Meet(keys=keys, first=first, sealed=met.sealed[party]) for party in others}
    for party, reply in transport.ask_all(questions).items():
        wire.expect(msg.Met, reply, party)


def _check_addressees(sealed: Mapping[str, bytes], others: Sequence[str], first: str) -> None:
    if set(sealed) != set(others):
        raise DataError(f"Party {first!r} sealed the secret for {sorted(sealed)} where {sorted(others)} belong.")


def have_a_secret(described: Mapping[str, msg.Description]) -> bool:
    """Whether all parties have one and the same secret already; different ones are refused."""
    found = {party: d.secret for party, d in described.items() if d.secret is not None}
    if len(set(found.values())) > 1:
        first = next(iter(found))
        others = [party for party, secret in found.items() if secret != found[first]]
        raise DataError(
            f"These parties have another common secret than {first!r}: {others}. "
            "Give all parties the same secret, or none: then they agree on one."
        )
    return len(found) == len(described)
