"""The rounds of a training among the parties that are present: three steps each.

1. The others adopt the trees of the round before and sum their gradients onto the builder's rows.
2. The builder adds its own gradients and grows the next trees.
3. The parties sum their gradients per leaf; from these sums come pruning and leaf values.

When a party is lost or comes back, new rounds begin with other keys: see `training.py`.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from simfl import messages as msg
from simfl import wire
from simfl.arrays import AnyArray, Doubles
from simfl.errors import ProtocolError
from simfl.hub.asking import ask_all, ask_each, check_round, refuse_unless, sent_by, small_total
from simfl.hub.handshake import MaskSteps, agree_on_masks
from simfl.hub.journal import Entry, Grew, Rematched
from simfl.hub.labels import Labels
from simfl.hub.matching import recall
from simfl.hub.precision import Precision, check_bounds, neighbors_of, ordinary
from simfl.hub.preparation import Prepared
from simfl.hub.state import Events, State
from simfl.params import Params, search_of
from simfl.privacy.exact import from_ints
from simfl.privacy.words import FORMS, add_bytes, can_be, most_steps
from simfl.training.losses import loss_of
from simfl.training.pruning import gain_of_features, keep_all, prune
from simfl.training.trees import Tree
from simfl.transport.base import Transport

DIVERGES = "If it does not lie, the training diverges: lower learning_rate, or raise reg_lambda"
ROUNDS_PER_REPLAY = 50  # so that no message grows with the length of the training


@dataclass(frozen=True)
class Plan:
    """What stays the same over all rounds."""

    prepared: Prepared
    params: Params
    seed: int
    labels: Labels
    warm_start: Sequence[msg.AdoptedTree] = ()


class Turn(NamedTuple):
    """Who builds in a round. Its number grows from turn to turn: no round is asked for twice."""

    round: int  # the place in the order of turns
    builder: str


class Rounds:
    """The rounds among the parties that are present."""

    def __init__(self, transport: Transport, plan: Plan, events: Events) -> None:
        self.transport, self.plan, self.events = transport, plan, events
        self.masks = MaskSteps()
        self.previous: list[msg.AdoptedTree] = []  # finished trees that the parties have not got yet

    @property
    def state(self) -> State:
        """Where the training stands."""
        return self.events.state

    def start(self) -> None:
        """New keys, and bounds for the digits of the parties' sums."""
        prepared, params = self.plan.prepared, self.plan.params
        share_secret = search_of(prepared.params).matching == "blind" and prepared.has_similar_rows
        self.masks = agree_on_masks(self.transport, params, share_secret=share_secret, n_parties=len(prepared.parties))
        started = ask_all(self.transport, self._start_request(), msg.Started)
        for party, reply in started.items():
            with sent_by(party):
                check_bounds(reply, prepared.rows[party], params)
        usual = ordinary(started, prepared.rows, params)
        neighbors = neighbors_of(prepared.rows, prepared.params.n_neighbors or 1)
        self.precision = Precision(started, params.min_group, usual, neighbors)
        self.row_precision = self.precision.onto_rows(prepared.most_uses)

    def _start_request(self) -> msg.Start:
        prepared, params, labels = self.plan.prepared, self.plan.params, self.plan.labels
        return msg.Start(
            params=params,
            seed=self.plan.seed,
            classes=labels.classes,
            base_margin=loss_of(params).margin(labels.base_score).tolist(),
            remember=prepared.n_hashes if search_of(params).rematch else 0,
            n_parties=len(self.transport.parties),
            warm_start=list(self.plan.warm_start),
        )

    # --- the three steps ---------------------------------------------------------------------------------------------

    def play(self, turn: Turn) -> None:
        """One round."""
        sums, scores = self._collect_row_sums(turn)
        grown = self._grow_trees(turn, sums)
        self.previous = []  # everybody has adopted them
        self._score(scores | {turn.builder: grown.scores})
        if not self.state.stopped:
            self._value_leaves(turn, grown)

    def _collect_row_sums(self, turn: Turn) -> tuple[msg.Array | None, dict[str, msg.SmallSums]]:
        """Step 1: all others sum their gradients onto the builder's rows. None: nothing is shared."""
        question = msg.SumOntoRows(
            round=turn.round,
            builder=turn.builder,
            previous=self.previous,
            exponents=self.row_precision.exponents,
            word_bytes=self.row_precision.word_bytes,
            mask=self.masks.next(),
        )
        questions = dict.fromkeys((party for party in self.transport.parties if party != turn.builder), question)
        replies = ask_each(self.transport, questions, msg.RowSums)
        for party, reply in replies.items():
            with sent_by(party):
                check_round(reply, turn.round)
                self._check_there(reply, party, turn.builder)
        sent = {party: reply.sums for party, reply in replies.items() if reply.sums is not None}
        if self.masks.on:
            self._check_masks_cancel(turn.builder, replies, sent)
        shape = (self.plan.prepared.rows[turn.builder], len(self.plan.labels.base_score))
        total = self._add(sent, shape) if sent else None
        return total, {party: reply.scores for party, reply in replies.items()}

    def _check_there(self, reply: msg.RowSums, party: str, builder: str) -> None:
        """Refuse sums that are missing, or that nobody asked for.

        Who had no part in the last rematch has no similar rows of it, nor has anybody similar rows at such a builder.
        """
        prepared, matched = self.plan.prepared, self.state.matched
        if reply.sums is not None:
            refuse_unless(prepared.has_similar_rows, f"sums onto the rows of {builder!r}, which nobody asked for")
        elif prepared.has_similar_rows:
            known = {*(matched.parties if matched else prepared.parties)}
            refuse_unless(not {party, builder} <= known, f"no sums onto the rows of {builder!r}")

    def _check_masks_cancel(self, builder: str, asked: Iterable[str], sent: Mapping[str, msg.Array]) -> None:
        """Refuse masked sums of some parties only: the masks of the others would stay on."""
        missing = [party for party in asked if party not in sent]
        if missing and sent:
            with sent_by(missing[0]):
                refuse_unless(False, f"no sums onto the rows of {builder!r}, and those of the others are masked")

    def _add(self, words: Mapping[str, msg.Array], shape: tuple[int, int]) -> msg.Array:
        """The sum of the parties' words. Integers: the order of the parties does not matter.

        Modulo a power of two, in which masks cancel. What they hide was cut off at its bounds, so that its sum fits;
        sums without masks are checked for that.
        """
        form = FORMS[self.row_precision.word_bytes]
        most = most_steps(form, len(self.transport.parties))
        total = np.zeros(math.prod(shape), dtype=np.uint64)
        for party, array in words.items():
            with sent_by(party):
                found = add_bytes(total, wire.bytes_of(array, f"u{form.n_bytes}", shape), form)
                sound = self.masks.on or can_be(found, most)
                refuse_unless(sound, "sums onto rows beyond the bounds that were announced")
        return wire.pack_words(total, form.n_bytes, shape)

    def _grow_trees(self, turn: Turn, sums: msg.Array | None) -> msg.Grown:
        """Step 2: the builder grows trees from its own gradients and the sums of the others."""
        question = msg.Grow(
            round=turn.round,
            previous=self.previous,
            sums=sums,
            exponents=self.row_precision.exponents,
            word_bytes=self.row_precision.word_bytes,
            mask=self.masks.now(),
        )
        grown = ask_each(self.transport, {turn.builder: question}, msg.Grown)[turn.builder]
        with sent_by(turn.builder):
            check_round(grown, turn.round)
            self._check_trees(grown)
            own = all((s.builder, s.round) == (turn.builder, turn.round) for s in grown.signed)
            refuse_unless(own and len(grown.signed) in (0, len(grown.trees)), "signatures of other trees")
        return grown

    def _check_trees(self, reply: msg.Grown) -> None:
        params, n_outputs = self.plan.params, len(self.plan.labels.base_score)
        most_nodes = 2 ** (params.max_depth + params.extra_depth + 1) if params.max_depth else math.inf
        n_values = None if reply.values is None else len(reply.values)
        refuse_unless(len(reply.trees) == n_outputs, f"{len(reply.trees)} trees where {n_outputs} belong")
        refuse_unless(n_values == (n_outputs if params.leaf_values == "builder" else None), "values of other trees")
        for tree in reply.trees:
            refuse_unless(tree.n_nodes < most_nodes, f"a tree of {tree.n_nodes} nodes, deeper than was asked for")
            wire.tree_from_message(tree, self.plan.prepared.n_features)
        for values, tree in zip(reply.values or [], reply.trees, strict=False):
            largest = float(np.abs(wire.unpack(values, "f4", (tree.n_nodes // 2 + 1,))).max())
            most = self.precision.most_leaf_value(params, self.state.moved)
            refuse_unless(largest <= most, f"a leaf value of {largest:g}, where {most:g} is possible. {DIVERGES}")

    def _value_leaves(self, turn: Turn, grown: msg.Grown) -> None:
        """Step 3: leaf values by the recipe. The parties get the finished trees with the next question."""
        trees = [wire.tree_from_message(structure, self.plan.prepared.n_features) for structure in grown.trees]
        if self.plan.params.leaf_values == "builder":
            values = [wire.unpack(v, "f4", (t.n_leaves,)) for v, t in zip(grown.values or [], trees, strict=True)]
            finished, gains = [t.with_leaf_values(v) for t, v in zip(trees, values, strict=True)], None
        else:
            finished, values, gains = self._exact_values(turn, trees, grown)
        signed: Sequence[msg.Signed | None] = grown.signed or [None] * len(trees)  # only parties can check them
        adopted = [
            msg.AdoptedTree(values=wire.pack(v), structure=structure, signed=own)
            for v, structure, own in zip(values, grown.trees, signed, strict=True)
        ]
        entry = Grew(
            round=len(self.state.rounds),
            turn=turn.round,
            builder=turn.builder,
            absent=[party for party in self.plan.prepared.parties if party not in self.transport.parties],
            gains=gains,
            adopted=adopted,
            trees=[wire.adopted(tree) for tree in finished],
        )
        self.events.record(entry)
        # Who summed per leaf knows the structures already.
        known = self.plan.params.leaf_values != "builder"
        self.previous = [msg.AdoptedTree(values=a.values, structure=None) if known else a for a in adopted]

    def _exact_values(
        self, turn: Turn, trees: Sequence[Tree], grown: msg.Grown
    ) -> tuple[list[Tree], list[AnyArray], list[float]]:
        """From the sums of all parties: the trees as the model keeps them, their values before pruning, the gains."""
        exponents = self.precision.per_leaf
        question = msg.SumPerLeaf(
            round=turn.round,
            trees=grown.trees,
            exponents=exponents,
            mask=self.masks.next(),
            signed=grown.signed,
        )
        replies = ask_all(self.transport, question, msg.LeafSums)
        for party, reply in replies.items():
            with sent_by(party):
                check_round(reply, turn.round)
                refuse_unless(len(reply.gradients) == len(reply.hessians) == len(trees), "sums of other trees")
        params = self.plan.params
        finished, values, gains = [], [], np.zeros(self.plan.prepared.n_features)
        for i, tree in enumerate(trees):
            G, H = self._leaf_totals({p: (r.gradients[i], r.hessians[i]) for p, r in replies.items()}, tree.n_leaves)
            final, leaf_values = _leaf_values(params)(tree, G, H, params)
            gains += gain_of_features(tree, final, G, H, params, len(gains))
            finished.append(final)
            values.append(leaf_values)
        return finished, values, gains.tolist()

    def _leaf_totals(self, sums: Mapping[str, tuple[msg.Array, msg.Array]], n_leaves: int) -> tuple[Doubles, Doubles]:
        """Gradients and hessians of all parties in the leaves of a tree, if they can be. Masked, only the total can."""
        sent: list[bytes] = []
        for party, both in sums.items():
            with sent_by(party):
                sent += [wire.bytes_of(array, "i8", (n_leaves,)) for array in both]
        each = np.frombuffer(b"".join(sent), dtype="<i8").reshape(len(sums), 2, n_leaves)
        if not self.masks.on:
            for party, low, high in zip(sums, each.min(axis=2).tolist(), each.max(axis=2).tolist(), strict=True):
                with sent_by(party):
                    self.precision.check_leaf_sums(low, high, [party])
        total = each.sum(axis=0)  # modulo 2 ** 64, in which masks cancel
        try:
            self.precision.check_leaf_sums(total.min(axis=1).tolist(), total.max(axis=1).tolist(), list(sums))
        except ProtocolError as error:
            raise ProtocolError(
                f"The sums per leaf of all parties are not possible in round {len(self.state.rounds)}: "
                f"{str(error).removesuffix('.')}. Some party sends false sums, and masks hide which one. Have "
                "every party check its labels and weights."
            ) from None
        exponents = self.precision.per_leaf
        return from_ints(total[0], exponents[0]), from_ints(total[1], exponents[1])

    def finish(self) -> None:
        """The last trees and their metrics."""
        question = msg.Finish(previous=self.previous, mask=self.masks.next())
        replies = ask_all(self.transport, question, msg.Finished)
        self.previous = []
        self._score({party: reply.scores for party, reply in replies.items()})

    def _score(self, scores: Mapping[str, msg.SmallSums]) -> None:
        """The metrics of the trees before came in with the replies."""
        if len(self.state.history) == len(self.state.rounds):
            return  # there are no trees before, or they are scored already
        loss = loss_of(self.plan.params)
        half = len(loss.sums) + 1
        total = small_total(scores, 2 * half, masked=self.masks.on)
        train, validation = (
            loss.finish(dict(zip(loss.sums, sums[:-1], strict=True)), sums[-1]) if sums[-1] else {}
            for sums in (total[:half], total[half:])
        )
        self.events.score(train, validation)

    # --- similar rows ------------------------------------------------------------------------------------------------

    def rematch_if_due(self, turn: Turn) -> None:
        """After `rematch` trees, then each time their number has doubled; and when somebody has come back since."""
        number, every, there = len(self.state.rounds), search_of(self.plan.params).rematch, self.transport.parties
        matched = self.state.matched
        if not every or not number or len(there) < 2:
            return
        before, now = (number - 1) // every, number // every
        is_new = matched is not None and not set(there) <= set(matched.parties)
        done = matched is not None and matched.round == turn.round
        if is_new or (not done and now.bit_length() > before.bit_length()):
            most_uses = self._rematch(turn.round, there)
            self.events.record(Rematched(round=turn.round, parties=list(there), most_uses=most_uses))
            self.row_precision = self.precision.onto_rows(most_uses)

    def _rematch(self, number: int, parties: Sequence[str]) -> dict[str, int]:
        """Find the similar rows again, by the leaves of the last trees: no more of them than there were hash values."""
        prepared = self.plan.prepared
        matching = prepared.matching(self.transport, self.plan.seed)
        question = msg.HashByTrees(
            round=number, previous=self.previous, n_hashes=prepared.n_hashes, blind=matching.is_blind
        )
        found = matching.find(question, parties)
        self.previous = []  # adopted on the way
        return found.most_uses

    # --- to where the journal ends -----------------------------------------------------------------------------------

    def replay(self, entries: Iterable[Entry]) -> None:
        """Bring the parties to where the journal ends: the same trees, in the same order, give the same margins."""
        rounds: list[list[msg.AdoptedTree]] = []
        for entry in entries:
            if isinstance(entry, Grew):
                rounds.append(entry.adopted)
            elif isinstance(entry, Rematched):
                self._send(rounds)
                self._match_again(entry)
                rounds = []
        self._send(rounds)

    def _send(self, rounds: list[list[msg.AdoptedTree]]) -> None:
        for start in range(0, len(rounds), ROUNDS_PER_REPLAY):
            ask_all(self.transport, msg.Replay(rounds=rounds[start : start + ROUNDS_PER_REPLAY]), msg.Done)

    def _match_again(self, then: Rematched) -> None:
        """Bring back the similar rows of a rematch: from what the parties kept, or by searching once more."""
        there = [party for party in then.parties if party in self.transport.parties]
        if not recall(self.transport, there, then.round) and there == then.parties:
            self._rematch(then.round, there)  # where somebody is missing a new rematch follows
        self.row_precision = self.precision.onto_rows(then.most_uses)


def _leaf_values(params: Params) -> Callable[..., tuple[Tree, Any]]:
    """How the recipe turns the sums of all parties into leaf values."""
    return prune if params.extra_depth else keep_all
