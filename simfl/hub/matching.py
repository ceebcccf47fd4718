"""Similar rows, as the hub finds them or has them found: in stage 1 by hash values, in a rematch by leaves.

Shared matching is the paper's: the global tables go to all parties, and every party finds its similar rows. In blind
matching (`blind.py`) the hub finds them, from names that mean nothing to it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from simfl import messages as msg
from simfl import wire
from simfl.hub import blind
from simfl.hub.asking import ask_each, check_round, refuse_unless, sent_by
from simfl.params import SearchParams
from simfl.preprocessing.similarity import Progress
from simfl.preprocessing.tables import HashValues, merge_tables
from simfl.transport.base import Transport


@dataclass
class SearchResult:
    """How similar the rows are that a search found."""

    equal_hashes: dict[str, dict[str, float]] = field(default_factory=dict)
    most_uses: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Matching:
    """The searches of a training: the same way to match, the same rows, the same seed."""

    transport: Transport
    params: SearchParams
    seed: int
    n_rows: Mapping[str, int]
    progress: Progress | None = None

    @property
    def is_blind(self) -> bool:
        """Whether the hub finds the similar rows."""
        return self.params.matching == "blind"

    def find(self, question: msg.Hash | msg.HashByTrees, parties: Sequence[str]) -> SearchResult:
        """Have these parties hash their rows, and find the similar ones."""
        number = question.round if isinstance(question, msg.HashByTrees) else 0
        questions = dict.fromkeys(parties, question)
        if self.is_blind:
            hidden = ask_each(self.transport, questions, msg.HiddenRows)
            _check(hidden, {party: len(reply.names) for party, reply in hidden.items()}, question, number)
            return self._blind(hidden, number)
        hashes = ask_each(self.transport, questions, msg.Hashes)
        _check(hashes, {party: (reply.values.shape or (0,))[-1] for party, reply in hashes.items()}, question, number)
        return self._shared(hashes, number)

    def _shared(self, replies: Mapping[str, msg.Hashes], number: int) -> SearchResult:
        """The global tables go to all parties, and every party finds its similar rows."""
        hashes: dict[str, HashValues] = {}
        for party, reply in replies.items():
            with sent_by(party):
                hashes[party] = _hash_values(reply, self.n_rows[party])
        found = ask_each(self.transport, self._questions(hashes, number), msg.Matched)
        for party, matched in found.items():
            with sent_by(party):
                self._check_matched(matched, party, [other for other in hashes if other != party])
        return SearchResult({p: r.equal_hashes for p, r in found.items()}, {p: r.most_uses for p, r in found.items()})

    def _check_matched(self, reply: msg.Matched, party: str, others: Sequence[str]) -> None:
        most = self.n_rows[party] * (self.params.n_neighbors or 0)
        fact = f"{reply.most_uses} of its rows like the same row, where {most} is possible"
        refuse_unless(reply.most_uses <= most, fact)
        refuse_unless(set(reply.equal_hashes) == set(others), f"similar rows of {sorted(reply.equal_hashes)}")

    def _questions(self, hashes: Mapping[str, HashValues], number: int) -> dict[str, msg.Match]:
        tables = merge_tables(hashes)
        packed = {party: wire.pack(codes) for party, codes in tables.codes.items()}
        values = [wire.pack(v.astype("i4")) for v in tables.values]
        return {
            party: msg.Match(
                round=number,
                seed=self.seed,
                n_neighbors=self.params.n_neighbors or 0,
                max_candidates=self.params.max_candidates or None,
                parties=list(hashes),
                bucket_values=values,
                tables={other: array for other, array in packed.items() if other != party},
            )
            for party in hashes
        }

    def _blind(self, hidden: dict[str, msg.HiddenRows], number: int) -> SearchResult:
        """The hub finds the similar rows, and hands them out without keeping them."""
        match, parties = SearchResult(), list(hidden)
        for found in blind.find(hidden, self, number):
            match.equal_hashes[found.party], match.most_uses[found.party] = found.equal_hashes, found.most_uses
            n_rows = {other: self.n_rows[other] for other in parties if other != found.party}
            question = msg.TakeSimilar(round=number, parties=parties, n_rows=n_rows, similar=found.similar)
            ask_each(self.transport, {found.party: question}, msg.Done)
        return match


def _check(
    replies: Mapping[str, Any], widths: Mapping[str, int], question: msg.Hash | msg.HashByTrees, number: int
) -> None:
    """Refuse replies of another round or with another number of hash values. Of trees there may be fewer at first."""
    first = next(iter(widths.values()))
    expected = question.n_hashes if isinstance(question, msg.Hash) else min(first, question.n_hashes)
    for party, reply in replies.items():
        with sent_by(party):
            check_round(reply, number)
            refuse_unless(1 <= widths[party] == expected, f"{widths[party]} hash values per row, not {expected}")


def _hash_values(reply: msg.Hashes, n_rows: int) -> HashValues:
    kind = reply.values.dtype if reply.values.dtype[0] == "u" else "u4"
    above = wire.unpack(reply.values, kind, (n_rows, None))
    return HashValues(wire.unpack(reply.lowest, "i4", (above.shape[1],)), above)


def recall(transport: Transport, parties: Sequence[str], number: int) -> bool:
    """Whether all these parties still have the similar rows of this round (0: of stage 1)."""
    replies = ask_each(transport, dict.fromkeys(parties, msg.Recall(round=number)), msg.Recalled)
    return all(reply.found for reply in replies.values())
