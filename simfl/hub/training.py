"""The hub runs both stages over a transport. It never sees a row.

It asks, adds up, and gives out; rows and labels stay behind `Party.handle`, and this module does not import it.
The paper has no hub: its parties reduce among themselves. A star needs no links between parties.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import msgspec
import numpy as np

from simfl import messages as msg
from simfl import wire
from simfl.arrays import AnyArray, Doubles
from simfl.callbacks import Callback, TreeRecord, logger
from simfl.data.schema import Column, Schema, agree
from simfl.errors import DataError, ParameterError, PartyLost, PrivacyError, PrivacyWarning, ProtocolError
from simfl.hub import blind as matching
from simfl.hub.journal import Began, FinishedTree, Grew, Journal, Rematched, Scored
from simfl.hub.key_exchange import have_a_secret, meet
from simfl.params import BINS, PrepareParams, TrainParams, with_numbers
from simfl.preprocessing.expansion import Expansion
from simfl.preprocessing.scaling import Moments, Scale, common_scale
from simfl.preprocessing.similarity import Progress
from simfl.preprocessing.tables import HashValues, merge_tables
from simfl.privacy.guard import about_two_parties, check_hashes, default_hashes
from simfl.privacy.noise import REACH, Noise, plan
from simfl.privacy.sums import FINE_ENOUGH, LEAF_BITS, ROW_BITS, SHORT_BITS, from_ints, int_type, resolution
from simfl.privacy.wide import WIDE_WORDS, from_words, to_wide, wide_total
from simfl.training.groups import SPREAD
from simfl.training.losses import LOSSES
from simfl.training.pruning import gain_of_features, keep_all, prune
from simfl.training.schedule import TURNS
from simfl.training.trees import Tree
from simfl.transport.base import Transport


class Prepared(msgspec.Struct, frozen=True, kw_only=True):
    """What the hub knows after stage 1. The similar rows stay at the parties, unless ids are fresh for every tree."""

    parties: list[str]
    n_rows: list[int]
    n_validation_rows: list[int]
    n_features: int
    schema: Schema | None  # where the columns have names
    seed: int
    params: PrepareParams
    n_hashes: int
    bucket_width: float | None
    equal_hashes: dict[str, dict[str, float]]  # party -> other party -> mean count of equal hash values
    most_uses: dict[str, int]  # party -> how many of its rows at most resemble one and the same row
    seconds: float
    neighbours: matching.Neighbours | None = None


# --- stage 1 ---------------------------------------------------------------------------------------------------------


def prepare(transport: Transport, params: PrepareParams, progress: Progress | None = None) -> Prepared:
    """Stage 1: find the similar rows. Done once, used by many trainings."""
    begun = time.perf_counter()
    seed = fresh_seed(params.random_state)
    described = describe(transport, params, seed)
    first = next(iter(described.values()))
    hashing: dict[str, Any] = {"n_hashes": 0, "bucket_width": None, "equal_hashes": {}, "most_uses": {}}
    if len(described) > 1 and params.n_neighbors:
        hashing = _find_similar_rows(transport, params, seed, described, progress)
    logger.info("Stage 1 is done: %d parties, %d hash values per row", len(described), hashing["n_hashes"])
    return Prepared(
        parties=list(described),
        n_rows=[d.n_rows for d in described.values()],
        n_validation_rows=[d.n_validation_rows for d in described.values()],
        n_features=first.n_features,
        schema=Schema(tuple(first.columns)) if first.columns else None,
        seed=seed,
        params=params,
        seconds=time.perf_counter() - begun,
        **hashing,
    )


def fresh_seed(random_state: int | None) -> int:
    """The given seed, or a new one."""
    return int(np.random.SeedSequence().entropy) % 2**63 if random_state is None else random_state  # type: ignore[arg-type]


def describe(transport: Transport, params: PrepareParams, seed: int) -> dict[str, msg.Description]:
    """The handshake: what has everybody got? Refuses tables that do not fit together."""
    question = msg.Describe(version=msg.VERSION, validation_fraction=params.validation_fraction, seed=seed)
    replies = _ask_all(transport, question, msg.Description)
    for party, reply in replies.items():
        with _sent_by(party):
            _refuse_unless(reply.n_rows > 0, "a table without rows")
    check_same_form(replies)
    return _settle(transport, replies)


def _settle(transport: Transport, described: dict[str, msg.Description]) -> dict[str, msg.Description]:
    """Agree on the order of the columns and on the levels of categories; tell those who have it otherwise."""
    own = {party: Schema(tuple(d.columns)) for party, d in described.items() if d.columns is not None}
    if not own:
        return described
    agreed = agree(own)
    question = msg.Settle(columns=list(agreed.columns))
    _ask_each(transport, {party: question for party, schema in own.items() if schema != agreed}, msg.Settled)
    return {party: msgspec.structs.replace(d, columns=list(agreed.columns)) for party, d in described.items()}


def settle(transport: Transport, schema: Schema | None) -> None:
    """Have everybody read its table through the schema that was agreed on."""
    if schema is not None:
        _ask_all(transport, msg.Settle(columns=list(schema.columns)), msg.Settled)


def check_same_form(described: Mapping[str, msg.Description]) -> None:
    """Refuse parties whose tables do not have the same columns; all differences in one message."""
    name, first = next(iter(described.items()))
    wrong = []
    for other, d in described.items():
        facts = _other_names(first.columns, d.columns)
        if facts:
            wrong.append(f"{other!r} ({facts})")
        elif d.n_features != first.n_features:
            wrong.append(f"{other!r} ({d.n_features} features, not {first.n_features})")
        elif d.is_sparse != first.is_sparse:
            wrong.append(f"{other!r} (a {'sparse' if d.is_sparse else 'dense'} table: its zeros mean something else)")
        elif (d.columns is None) != (first.columns is None):
            wrong.append(f"{other!r} (columns {'without' if d.columns is None else 'with'} names)")
    if wrong:
        raise DataError(
            f"These parties have other columns than {name!r}: {', '.join(wrong)}. "
            "Give every party the same columns, all dense or all sparse; without names also in the same order."
        )


def _other_names(first: list[Column] | None, own: list[Column] | None) -> str:
    """Which names are missing and which are extra, in words."""
    if first is None or own is None:
        return ""
    names, others = [c.name for c in own], [c.name for c in first]
    missing, extra = [c for c in others if c not in names], [c for c in names if c not in others]
    return "; ".join([f"missing: {missing}"] * bool(missing) + [f"extra: {extra}"] * bool(extra))


class _Masks:
    """Counts the steps of masked sums; the masks themselves are the parties' affair."""

    def __init__(self, parties: Sequence[str] = ()) -> None:
        self.parties, self.step = list(parties), -1

    @property
    def on(self) -> bool:
        """Whether sums are masked at all."""
        return bool(self.parties)

    def next(self) -> msg.Masking | None:
        """Of the next step."""
        self.step += 1
        return self.now()

    def now(self) -> msg.Masking | None:
        """Of the step that is under way."""
        return msg.Masking(step=self.step, parties=self.parties) if self.on else None


def _masks(transport: Transport, params: PrepareParams | TrainParams, prepared: Prepared | None = None) -> _Masks:
    """Let the parties meet if their sums are to be masked. New keys each time: no mask of before fits.

    They meet, too, if they are going to match rows blindly: whoever is new here is given the secret.
    """
    wanted = transport.deployed if params.masked is None else params.masked
    blind = prepared is not None and prepared.params.matching == "blind" and bool(prepared.most_uses)
    several = len(transport.parties) > 1
    if wanted and not several and prepared is not None and len(prepared.parties) > 1:
        raise PrivacyError(
            f"Only party {transport.parties[0]!r} is left: its sums would not be hidden among others. "
            "Wait for the others, or allow it with masked=false."
        )
    if several and (wanted or blind):
        meet(transport)
    return _Masks(transport.parties if wanted and several else ())


def _find_similar_rows(
    transport: Transport,
    params: PrepareParams,
    seed: int,
    described: Mapping[str, msg.Description],
    progress: Progress | None,
) -> dict[str, Any]:
    # Step 1: a common scale.
    d = next(iter(described.values())).n_features
    guarded = params.original_features or d
    n_hashes = params.n_hashes or max(default_hashes(guarded, params.known_features), 1)
    check_hashes(n_hashes, guarded, params.known_features, allow_unsafe=params.allow_unsafe_hashes)
    blind, masks = params.matching == "blind", _masks(transport, params)
    if blind and not masks.on and not have_a_secret(described):
        meet(transport)
    expansion = _expansion(next(iter(described.values())))
    scale = _scale(transport, params, expansion, sum(r.n_rows for r in described.values()), masks)
    bucket_width = params.bucket_width or scale.norm / 2 or 1.0
    # Step 2: every party hashes its rows.
    question = msg.Hash(
        seed=None if blind else seed,
        n_hashes=n_hashes,
        bucket_width=bucket_width,
        law=params.hash_law,
        mean=wire.pack(scale.mean),
        deviation=wire.pack(scale.deviation),
    )
    found = {"n_hashes": n_hashes, "bucket_width": bucket_width}
    if blind:  # Step 3, blind: the hub finds the similar rows, each party gets the ids of those of its own rows.
        n_rows = {party: d.n_rows for party, d in described.items()}
        hidden = _ask_all(transport, question, msg.HiddenRows)
        neighbours, alike = _match_blindly(transport, hidden, n_rows, n_hashes, params, seed, progress=progress)
        return found | alike | {"neighbours": neighbours}
    hashes = {}
    for party, reply in _ask_all(transport, question, msg.Hashes).items():
        with _sent_by(party):
            hashes[party] = _hash_values(reply.values, reply.lowest, described[party].n_rows, n_hashes)
    # Step 3, shared: the global tables go to everybody, and every party finds its similar rows.
    return found | _match(transport, hashes, params, seed)


def _expansion(described: msg.Description) -> Expansion:
    """How every party lays its columns out for hashing. The condition L < d counts the columns before that."""
    columns = described.columns
    return Expansion(Schema(tuple(columns)).n_levels if columns else np.zeros(described.n_features, dtype=np.int32))


def _scale(transport: Transport, params: PrepareParams, expansion: Expansion, n_rows: int, masks: _Masks) -> Scale:
    d = expansion.width
    if params.scale == "none" and params.bucket_width is not None:
        return Scale.none(d)
    found = _total_moments(transport, d, masks)
    if params.scale == "standard":
        return common_scale(found, n_rows, expansion.groups)
    return Scale(np.zeros(d), np.ones(d), math.sqrt(float(found.squares.sum()) / n_rows))


def _total_moments(transport: Transport, d: int, masks: _Masks) -> Moments:
    """The moments over all parties; masked or not, they are added up as wide numbers, so that no bit differs."""
    replies = _ask_all(transport, msg.Measure(mask=masks.next()), msg.FeatureMoments)

    columns: list[list[list[int]]] = [[], [], []]
    for party, reply in replies.items():
        with _sent_by(party):
            for column, array in zip(columns, (reply.counts, reply.sums, reply.squares), strict=True):
                column.append(_wide(array, d) if masks.on else to_wide(wire.unpack(array, "f8", (d,)).tolist()))
    return Moments(*(np.array(wide_total(vectors)) for vectors in columns))


def _wide(array: msg.Array, n: int) -> list[int]:
    return from_words(wire.unpack(array, "u8", (n, WIDE_WORDS)))


def _hash_values(values: msg.Array, lowest: msg.Array | None, n_rows: int, n_hashes: int | None) -> HashValues:
    above = wire.unpack(values, values.dtype if values.dtype[0] == "u" else "u4", (n_rows, n_hashes))
    none = np.zeros(above.shape[1], dtype=np.int32)
    return HashValues(none if lowest is None else wire.unpack(lowest, "i4", (n_hashes,)), above)


def _match(
    transport: Transport, hashes: Mapping[str, HashValues], params: PrepareParams, seed: int, number: int | None = None
) -> dict[str, Any]:
    tables = merge_tables(hashes)
    packed = {party: wire.pack(codes) for party, codes in tables.codes.items()}
    values = [wire.pack(v.astype(np.int32)) for v in tables.values]
    questions = {
        party: msg.Match(
            round=number,
            seed=seed,
            n_neighbors=params.n_neighbors or 0,
            max_candidates=params.max_candidates or None,
            parties=list(hashes),
            bucket_values=values,
            tables={other: array for other, array in packed.items() if other != party},
        )
        for party in hashes
    }
    replies = _ask_each(transport, questions, msg.Matched)
    return {
        "equal_hashes": {party: reply.equal_hashes for party, reply in replies.items()},
        "most_uses": {party: reply.most_uses for party, reply in replies.items()},
    }


def _match_blindly(
    transport: Transport,
    hidden: dict[str, msg.HiddenRows],
    n_rows: Mapping[str, int],
    n_hashes: int | None,
    params: PrepareParams,
    seed: int,
    number: int | None = None,
    progress: Progress | None = None,
) -> tuple[matching.Neighbours | None, dict[str, Any]]:
    """Find the similar rows; the hub keeps them only where the parties are not to know them."""
    fresh = params.ids == "fresh"
    for party, reply in hidden.items():
        with _sent_by(party):
            expected = n_hashes or len(next(iter(hidden.values())).names)
            _refuse_unless(reply.round == number, f"rows for round {reply.round}")
            _refuse_unless(1 <= len(reply.names) == expected, f"names of {len(reply.names)} hash functions")
    parties, kept = list(hidden), {}
    names = {party: reply.ties for party, reply in hidden.items()}
    alike: dict[str, dict[str, Any]] = {"equal_hashes": {}, "most_uses": {}}
    for found in matching.find(hidden, n_rows, params, seed, number, progress):
        alike["equal_hashes"][found.party] = found.equal_hashes
        alike["most_uses"][found.party] = found.most_uses
        if fresh:
            kept[found.party] = found.similar
        matching.hand_out(transport, found.party, {} if fresh else found.similar, n_rows, parties, number)
    if not fresh:
        return None, alike
    return matching.Neighbours(similar=kept, names=names, n_rows={p: n_rows[p] for p in parties}), alike


# --- stage 2 ---------------------------------------------------------------------------------------------------------


MANY_ROWS = 50_000  # per party: with more, most of the time of a deep tree goes into the histograms of its nodes
COARSE_BINS = 64


@dataclass(frozen=True)
class Earlier:
    """A finished model that a training goes on from."""

    objective: str
    classes: list[Any] | None
    base_score: Doubles
    rounds: list[list[Tree]]
    schema: Schema | None


@dataclass
class Training:
    """What a training leaves behind: the trees and how they came about."""

    prepared: Prepared
    params: TrainParams
    classes: list[Any] | None
    base_score: Doubles
    rounds: list[list[Tree]] = field(default_factory=list)
    history: list[TreeRecord] = field(default_factory=list)
    gains: list[Doubles] = field(default_factory=list)  # per round and feature: what its splits gained for all parties
    earlier: list[msg.AdoptedTree] = field(default_factory=list)  # trees that it goes on from
    best_round: int | None = None
    neighbours: matching.Neighbours | None = None  # with fresh ids: the similar rows, as the hub knows them
    masks: _Masks = field(default_factory=_Masks)


@dataclass
class _Exponents:
    """The resolution of the sums, as powers of two: gradients and hessians."""

    started: dict[str, msg.Started]
    min_group: int = 1
    noise: Noise | None = None
    row: tuple[int, int] = (0, 0)
    bits: msg.RowBits = 31  # of hessians onto rows

    def matched(self, most_uses: Mapping[str, int]) -> None:
        """Sums onto rows are bounded by how many rows resemble one and the same row."""
        more = SPREAD * self.min_group if self.min_group > 1 else 1
        sizes = [(s, more * most_uses.get(party, 0)) for party, s in self.started.items()]
        gradients = [s.gradient * uses + self._reach("row", 0) for s, uses in sizes]
        hessians = [s.hessian * uses + self._reach("row", 1) for s, uses in sizes]
        largest = max(s.hessian for s in self.started.values())
        short = math.ldexp(1.0, resolution(hessians, SHORT_BITS)) <= FINE_ENOUGH * largest
        self.bits = 23 if short else 31
        self.row = (resolution(gradients, ROW_BITS), resolution(hessians, self.bits))

    @property
    def leaf(self) -> tuple[int, int]:
        """Sums per leaf are bounded by the sums over all rows."""
        return (
            resolution((s.total_gradient + self._reach("leaf", 0) for s in self.started.values()), LEAF_BITS),
            resolution((s.total_hessian + self._reach("leaf", 1) for s in self.started.values()), LEAF_BITS),
        )

    def _reach(self, sums: str, part: int) -> float:
        """How far noise can go beyond the bounds."""
        return REACH * float(getattr(self.noise, sums)[part]) if self.noise else 0.0

    def least_hessian(self) -> float:
        """The deviation of the noise in a leaf's total: less is not to be told from nothing."""
        return self.noise.leaf[1] * math.sqrt(len(self.started)) if self.noise else -math.inf


def train(
    transport: Transport,
    prepared: Prepared,
    params: TrainParams,
    callbacks: Sequence[Callback] = (),
    journal: Journal | None = None,
    min_parties: int | None = None,
    earlier: Earlier | None = None,
) -> Training:
    """Stage 2: grow the trees, one after the other, from nothing or from an earlier model on.

    With a journal, the training goes on where the journal ends, and it survives the loss of parties as long as
    `min_parties` are there (None: all of them).
    """
    _check_early_stopping(prepared, params)
    params = with_numbers(params, prepared.schema.names if prepared.schema else None, prepared.n_features)
    _check_constraints(prepared, params)
    logger.info(
        "Training begins: %d trees over %d parties, %s", params.n_trees, len(prepared.parties), params.objective
    )
    seed = fresh_seed(params.random_state) if params.random_state is not None else prepared.seed
    params = _fitted(params, prepared)
    training = _begin(transport, prepared, params, seed, journal, earlier)
    watch = _Watch(training, transport, callbacks, journal)
    try:
        while not _grow_with(transport, training, watch, seed, min_parties):
            pass
    finally:
        watch.close()
    return watch.best_trees()


def _fitted(params: TrainParams, prepared: Prepared) -> TrainParams:
    """What the parameters leave open, by the number of parties and rows."""
    n_parties, many_rows = len(prepared.parties), sum(prepared.n_rows) > MANY_ROWS * len(prepared.parties)
    settled: dict[str, Any] = {}
    if n_parties == 1:  # one party's own leaf values are the exact ones already
        settled |= {"leaf_values": "builder", "extra_depth": 0}
    if not prepared.most_uses:  # no similar rows, none to be found anew
        settled["rematch"] = 0
    if params.subsample is None:
        halved = n_parties == 2 and prepared.most_uses and params.recipe == "default"
        settled["subsample"] = 0.5 if halved else 1.0
    if params.max_bin is None:
        coarse = n_parties > 1 and many_rows and params.recipe == "default" and params.cuts == "own"
        settled["max_bin"] = COARSE_BINS if coarse else BINS
    return msgspec.structs.replace(params, **settled)


def _grow_with(transport: Transport, training: Training, watch: _Watch, seed: int, min_parties: int | None) -> bool:
    """Grow until the end, or until a party is lost or comes back. True: it is finished."""
    try:
        if watch.journal is not None:
            settle(transport, training.prepared.schema)  # whoever was started anew has its own order of columns
        exponents = _start(transport, training, seed)
        if watch.journal is not None:
            _replay(transport, training, exponents, watch, seed)
        return _grow_all(transport, training, exponents, watch, seed)
    except PartyLost as lost:
        transport.parties = [party for party in transport.parties if party not in lost.parties]
        if watch.journal is None or min_parties is None or len(transport.parties) < max(min_parties, 1):
            raise
        return False


def _grow_all(transport: Transport, training: Training, exponents: _Exponents, watch: _Watch, seed: int) -> bool:
    """The main loop."""
    prepared, params = training.prepared, training.params
    previous: list[msg.AdoptedTree] = []
    n = n_rounds(params, len(prepared.parties))
    for turn, builders in islice(enumerate(TURNS[params.turns](prepared.n_rows)), watch.turn, None):
        number = len(training.rounds)
        names = [p for p in (prepared.parties[builder] for builder in builders) if p in transport.parties]
        if number == n or watch.stopped:
            break
        if _welcome_back(transport, prepared):
            return False
        if not names:
            continue  # the next in turn
        if _rematch_is_due(number, len(builders), watch, transport, params):
            watch.rematched(number, *_rematch(transport, training, number, seed, previous, transport.parties))
            exponents.matched(watch.most_uses)
            previous = []  # adopted on the way
        # Step 1: the others adopt the previous trees and sum their gradients onto the builder's rows.
        drawn, orders = _draw(training, names, number, seed)
        masks = training.masks
        sums, scores = _sums_for(transport, number, names, previous, exponents, drawn, masks)
        # Step 2: the builder adds its own and grows the next trees.
        grown = _grow(transport, number, sums, previous if len(names) == 1 else [], exponents, training, orders)
        previous = []
        if watch.scored(scores if len(names) > 1 else [*scores, grown[0].scores]):  # the scores of the trees before
            break
        # Step 3: leaf values by the recipe; everybody adopts the trees with the next message.
        trees, previous, gains = _value(transport, grown, number, params, exponents, prepared.n_features, masks)
        watch.built(turn, names, trees, grown, previous, gains)
    last = msg.Finish(round=len(training.rounds), previous=previous, mask=training.masks.next())
    finished = _ask_all(transport, last, msg.Finished)
    watch.scored([reply.scores for reply in finished.values()])
    return True


def _welcome_back(transport: Transport, prepared: Prepared) -> bool:
    """Count parties in again that were lost and answer now."""
    back = transport.returned()
    if back:
        transport.parties = [party for party in prepared.parties if party in (*transport.parties, *back)]
    return bool(back)


def _check_early_stopping(prepared: Prepared, params: TrainParams) -> None:
    if params.early_stopping_rounds and not any(prepared.n_validation_rows):
        raise ParameterError(
            "early_stopping_rounds needs validation rows, and no party has any. "
            "Set validation_fraction=0.2, or give parties validation=(X, y)."
        )


def _check_constraints(prepared: Prepared, params: TrainParams) -> None:
    columns = prepared.schema.columns if prepared.schema else ()
    wrong = [c.name for c, s in zip(columns, params.monotone_constraints or [], strict=False) if s and c.levels]
    if wrong:
        raise ParameterError(f"monotone_constraints cannot bind categories: {wrong} have no order.")


def _check_earlier(earlier: Earlier, prepared: Prepared, params: TrainParams, classes: list[Any] | None) -> None:
    if earlier.objective != params.objective:
        raise ParameterError(f"init_model was trained with {earlier.objective!r}, not {params.objective!r}.")
    if earlier.schema != prepared.schema:
        raise DataError(
            "The parties do not have the columns and levels of init_model. Give every party schema=model.schema."
        )
    strange = [c for c in classes or [] if c not in (earlier.classes or [])]
    if strange:
        raise DataError(f"init_model does not know these classes: {strange}.")


def _begin(
    transport: Transport,
    prepared: Prepared,
    params: TrainParams,
    seed: int,
    journal: Journal | None,
    earlier: Earlier | None,
) -> Training:
    """Classes and start value, from the labels or from the journal of a training that already began."""
    _advise(transport, params)
    began = next(iter(journal.of(Began)), None) if journal else None
    if began is None or set(transport.parties) == set(prepared.parties):
        classes, base_score = labels(transport, params, _masks(transport, params))
        if earlier is not None:
            _check_earlier(earlier, prepared, params, classes)
            classes, base_score = earlier.classes, earlier.base_score
        now = Began(params=params, seed=seed, classes=classes, base_score=base_score.tolist())
        if began is not None and began != now:
            raise DataError(
                "This training began with other labels or parameters: its journal does not fit any more. "
                "Start a new training, without --resume."
            )
        if began is None and journal is not None:
            journal.append(now)
        return Training(prepared, params, classes, base_score, earlier=_trees_of(earlier))
    return Training(prepared, params, began.classes, np.array(began.base_score))


def _advise(transport: Transport, params: TrainParams) -> None:
    """Tell two parties what their sums reveal. In one process all rows are in one place anyway."""
    advice = about_two_parties(transport.parties, params.min_group)
    if advice and (params.masked or transport.deployed):
        warnings.warn(advice, PrivacyWarning, stacklevel=4)


def _start(transport: Transport, training: Training, seed: int) -> _Exponents:
    prepared, params = training.prepared, training.params
    training.neighbours, training.masks = prepared.neighbours, _masks(transport, params, prepared)
    scale = _cut_scale(transport, training)
    question = msg.Start(
        params=params,
        seed=seed,
        classes=training.classes,
        base_margin=LOSSES[params.objective].margin(training.base_score).tolist(),
        remember=prepared.n_hashes if params.rematch else 0,
        n_parties=len(transport.parties),
        n_rounds=n_rounds(params, len(prepared.parties)),
        shares_rows=bool(prepared.most_uses),
        mean=wire.pack(scale.mean) if scale else None,
        deviation=wire.pack(scale.deviation) if scale else None,
        earlier=training.earlier,
    )
    started = _ask_all(transport, question, msg.Started)
    for party, reply in started.items():
        with _sent_by(party):
            bounds = (reply.gradient, reply.hessian, reply.total_gradient, reply.total_hessian)
            _refuse_unless(min(bounds) >= 0, f"the bounds {bounds}")
    noise = plan(
        params,
        n_rounds(params, len(prepared.parties)),
        len(transport.parties),
        shares_rows=bool(prepared.most_uses),
    )
    exponents = _Exponents(started, params.min_group, noise)
    exponents.matched(prepared.most_uses)
    return exponents


def _trees_of(earlier: Earlier | None) -> list[msg.AdoptedTree]:
    return [
        msg.AdoptedTree(values=wire.pack(tree.value[tree.leaves]), structure=wire.tree_to_message(tree))
        for trees in (earlier.rounds if earlier else [])
        for tree in trees
    ]


def _cut_scale(transport: Transport, training: Training) -> Scale | None:
    """Where the grid of shared cut points lies."""
    if training.params.cuts != "shared":
        return None
    prepared = training.prepared
    levels = prepared.schema.n_levels if prepared.schema else np.zeros(prepared.n_features, dtype=np.int32)
    return common_scale(_total_moments(transport, Expansion(levels).width, training.masks), sum(prepared.n_rows))


ROUNDS_PER_REPLAY = 50  # so that no message grows with the length of the training


def _replay(transport: Transport, training: Training, exponents: _Exponents, watch: _Watch, seed: int) -> None:
    """Bring the parties to where the journal ends: the same trees, in the same order, give the same margins."""
    rounds: list[list[msg.AdoptedTree]] = []

    def send() -> None:
        for start in range(0, len(rounds), ROUNDS_PER_REPLAY):
            _ask_all(transport, msg.Replay(rounds=rounds[start : start + ROUNDS_PER_REPLAY]), msg.Replayed)
        rounds.clear()

    for entry in watch.journal.entries if watch.journal else []:
        if isinstance(entry, Grew):
            rounds.append(entry.adopted)
        elif isinstance(entry, Rematched):
            send()
            _match_again(transport, training, entry, seed)
            exponents.matched(entry.most_uses)
    send()


def _match_again(transport: Transport, training: Training, then: Rematched, seed: int) -> None:
    """Bring back the similar rows of a rematch: from what the parties kept, or by searching once more."""
    there = [party for party in then.parties if party in transport.parties]
    if training.prepared.params.ids == "fresh":  # only the hub knew them
        if len(there) > 1:
            _rematch(transport, training, then.round, seed, [], there)
        return
    if recall(transport, there, then.round) or there != then.parties:
        return  # where somebody is missing a new rematch follows
    _rematch(transport, training, then.round, seed, [], there)


def recall(transport: Transport, parties: Sequence[str], number: int | None) -> bool:
    """Whether all these parties still have the similar rows that they found then."""
    replies = _ask_each(transport, dict.fromkeys(parties, msg.Recall(round=number)), msg.Recalled)
    return all(reply.found for reply in replies.values())


def _rematch_is_due(number: int, trees: int, watch: _Watch, transport: Transport, params: TrainParams) -> bool:
    """After `rematch` trees, then each time their number has doubled; and when somebody has come back since."""
    if not params.rematch or not number or len(transport.parties) < 2 or watch.rematched_at == number:
        return False
    if watch.matched_by is not None and not set(transport.parties) <= set(watch.matched_by):
        return True
    before, now = (number - 1) * trees // params.rematch, number * trees // params.rematch
    return now.bit_length() > before.bit_length()


def _rematch(
    transport: Transport,
    training: Training,
    number: int,
    seed: int,
    previous: list[msg.AdoptedTree],
    parties: Sequence[str],
) -> tuple[list[str], dict[str, int]]:
    """Find the similar rows anew, by the leaves of the last trees: no more of them than there were hash values."""
    prepared = training.prepared
    blind = prepared.params.matching == "blind"
    question = msg.HashByTrees(round=number, previous=previous, n_hashes=prepared.n_hashes, blind=blind)
    rows = dict(zip(prepared.parties, prepared.n_rows, strict=True))
    if blind:
        hidden = _ask_each(transport, dict.fromkeys(parties, question), msg.HiddenRows)
        training.neighbours, alike = _match_blindly(transport, hidden, rows, None, prepared.params, seed, number=number)
        return list(parties), alike["most_uses"]
    leaves: dict[str, HashValues] = {}
    for party, reply in _ask_each(transport, dict.fromkeys(parties, question), msg.LeavesOfRows).items():
        with _sent_by(party):
            leaves[party] = _hash_values(_of_round(reply, number, party).leaves, None, rows[party], None)
            n_trees = leaves[party].above.shape[1]
            others = next(iter(leaves.values())).above.shape[1]
            _refuse_unless(1 <= n_trees == others <= prepared.n_hashes, f"leaves of {n_trees} trees")
    uses: dict[str, int] = _match(transport, leaves, prepared.params, seed, number)["most_uses"]
    return list(parties), uses


def labels(transport: Transport, params: TrainParams, masks: _Masks | None = None) -> tuple[list[Any] | None, Doubles]:
    """The classes of all parties (None for regression) and the start value. Refuses labels that do not fit."""
    masked = masks is not None and masks.on
    if params.epsilon is not None:  # label sums would tell about labels, without noise
        replies = _ask_all(
            transport, msg.DescribeLabels(objective=params.objective, only_classes=True), msg.LabelSummary
        )
        classes = check_labels(replies, params, only_classes=True)
        n = len(classes or []) if params.objective == "multi:softprob" else 1
        return classes, _base_score([1.0] * max(n, 2), max(n, 2), classes, params)
    question = msg.DescribeLabels(objective=params.objective, only_classes=masked)
    replies = _ask_all(transport, question, msg.LabelSummary)
    classes = check_labels(replies, params, only_classes=masked)
    *sums, weight = (
        _masked_label_sums(transport, classes, params, masks) if masks and masks.on else _label_sums(replies, classes)
    )
    return classes, _base_score(sums, weight, classes, params)


def check_labels(
    replies: Mapping[str, msg.LabelSummary], params: TrainParams, *, only_classes: bool = False
) -> list[Any] | None:
    """The classes of all parties, None for regression; refuses labels that do not fit together."""
    for party, reply in replies.items():
        with _sent_by(party):
            _refuse_unless((reply.classes is not None) == LOSSES[params.objective].classifies, "labels of another kind")
            if not only_classes:
                expected = 1 if reply.classes is None else len(reply.classes)
                _refuse_unless(len(reply.sums) == expected, "labels of another kind")
                sound = reply.weight > 0 and (reply.classes is None or min(reply.sums) >= 0)
                _refuse_unless(sound, "weights below zero")
    return _merge_classes(replies, params.objective) if LOSSES[params.objective].classifies else None


def _label_sums(replies: Mapping[str, msg.LabelSummary], classes: list[Any] | None) -> list[float]:
    """The weight of every class (or the sum of the labels), and the weight of all rows."""
    if classes is None:
        sums = [math.fsum(reply.sums[0] for reply in replies.values())]
    else:
        per_party = [dict(zip(reply.classes or [], reply.sums, strict=True)) for reply in replies.values()]
        sums = [math.fsum(own.get(c, 0.0) for own in per_party) for c in classes]
    return [*sums, math.fsum(reply.weight for reply in replies.values())]


def _masked_label_sums(
    transport: Transport, classes: list[Any] | None, params: TrainParams, masks: _Masks
) -> list[float]:
    question = msg.SumLabels(objective=params.objective, classes=classes, mask=masks.next())
    replies = _ask_all(transport, question, msg.LabelSums)
    n = 2 if classes is None else len(classes) + 1
    return wide_total([_wide(reply.sums, n) for reply in replies.values()])


def _merge_classes(replies: Mapping[str, msg.LabelSummary], objective: str) -> list[Any]:
    found = {party: reply.classes or [] for party, reply in replies.items()}
    kinds = {party: {"text" if isinstance(c, str) else "numbers" for c in own} for party, own in found.items()}
    if len(set.union(*kinds.values())) > 1:
        facts = ", ".join(f"{party!r} {own[:3]}" for party, own in found.items())
        raise DataError(f"Some parties have text as labels, others numbers: {facts}. Give all the same labels.")
    classes = sorted(set().union(*found.values()))
    facts = ", ".join(f"{party!r} {own[:6]}" for party, own in found.items())
    if len(classes) < 2:
        raise DataError(f"All labels of all parties are of one class ({classes[0]!r}). There is nothing to learn.")
    if objective == "binary:logistic" and len(classes) > 2:
        raise DataError(
            f"binary:logistic needs two classes, the parties together have {len(classes)}: {facts}. "
            "Use objective='multi:softprob' for classes or 'reg:squarederror' for numbers, or mend the labels."
        )
    return classes


def _base_score(sums: Sequence[float], weight: float, classes: list[Any] | None, params: TrainParams) -> Doubles:
    """The start value from the label mean over all parties (or as given)."""
    loss = LOSSES[params.objective]
    if params.base_score is not None:
        start = np.float32(params.base_score)
        if params.objective == "binary:logistic" and not 0 < start < 1:
            raise ParameterError(f"base_score={params.base_score} is not possible: it must be a probability.")
        if not np.isfinite(start):
            raise ParameterError(f"base_score={params.base_score} is not possible: it does not fit float32.")
        return np.full(len(classes) if params.objective == "multi:softprob" and classes else 1, params.base_score)
    return loss.start(sums, weight)


def n_rounds(params: TrainParams, n_parties: int) -> int:
    """How often the parties are asked: where all build at once, a round brings a tree from each."""
    return -(-params.n_trees // n_parties) if params.turns == "all" else params.n_trees


def _draw(
    training: Training, builders: Sequence[str], number: int, seed: int
) -> tuple[dict[str, dict[str, msg.Array]], dict[str, bytes]]:
    """With fresh ids: per party and builder the rows that its own go to, and per builder how to undo their order."""
    drawn: dict[str, dict[str, msg.Array]] = {}
    orders: dict[str, bytes] = {}
    for builder in builders if training.neighbours else ():
        rows, orders[builder] = matching.draw(training.neighbours, builder, seed + number)  # type: ignore[arg-type]
        for party, own in rows.items():
            drawn.setdefault(party, {})[builder] = own
    return drawn, orders


def _sums_for(
    transport: Transport,
    number: int,
    builders: list[str],
    previous: list[msg.AdoptedTree],
    exponents: _Exponents,
    drawn: Mapping[str, dict[str, msg.Array]],
    masks: _Masks,
) -> tuple[dict[str, dict[str, msg.Array | None]], list[msg.Scores]]:
    """Ask all but a sole builder for their sums and add these up, for every builder."""
    question = msg.SumOntoRows(
        round=number,
        builders=builders,
        previous=previous,
        exponents=exponents.row,
        hessian_bits=exponents.bits,
        mask=masks.next(),
    )
    asked = [party for party in transport.parties if builders != [party]]
    questions = dict.fromkeys(asked, question)
    for party in drawn.keys() & questions:
        questions[party] = msgspec.structs.replace(question, similar=drawn[party])
    replies = {
        party: _of_round(reply, number, party) for party, reply in _ask_each(transport, questions, msg.RowSums).items()
    }
    sums = {
        builder: {
            "gradients": _add({party: reply.gradients.get(builder) for party, reply in replies.items()}, "i4"),
            "hessians": _add(
                {party: reply.hessians.get(builder) for party, reply in replies.items()}, int_type(exponents.bits)
            ),
        }
        for builder in builders
    }
    return sums, [reply.scores for reply in replies.values()]


def _grow(
    transport: Transport,
    number: int,
    sums: Mapping[str, dict[str, msg.Array | None]],
    previous: list[msg.AdoptedTree],
    exponents: _Exponents,
    training: Training,
    orders: Mapping[str, bytes],
) -> list[msg.Grown]:
    """Ask each builder for its trees."""
    params, n_outputs, n_features = training.params, len(training.base_score), training.prepared.n_features
    questions = {
        builder: msg.Grow(
            round=number,
            previous=previous,
            exponents=exponents.row,
            hessian_bits=exponents.bits,
            order=orders.get(builder),
            mask=training.masks.now(),
            with_scores=len(sums) == 1,
            **own,
        )
        for builder, own in sums.items()
    }
    replies = _ask_each(transport, questions, msg.Grown)
    most_nodes = 2 ** (params.max_depth + (params.extra_depth or 0) + 1) if params.max_depth else math.inf
    for party, reply in replies.items():
        with _sent_by(party):
            _of_round(reply, number, party)
            n_values = None if reply.values is None else len(reply.values)
            _refuse_unless(len(reply.trees) == n_outputs, f"{len(reply.trees)} trees where {n_outputs} belong")
            _refuse_unless(
                n_values == (n_outputs if params.leaf_values == "builder" else None), "values of other trees"
            )
            for tree in reply.trees:
                _refuse_unless(tree.n_nodes < most_nodes, f"a tree of {tree.n_nodes} nodes, deeper than was asked for")
                wire.tree_from_message(tree, n_features)
    return list(replies.values())


def _add(arrays: Mapping[str, msg.Array | None], dtype: msg.DType) -> msg.Array | None:
    """The sum of integer vectors. Integers: the order of the parties does not matter.

    Modulo 2 ** 32 (or 2 ** 24), in which masks cancel. What they hide was cut off at its bounds, so that its sum fits.
    """
    total: AnyArray | None = None
    for party, array in arrays.items():
        if array is not None:
            shape = total.shape if total is not None else (None,) * len(array.shape)
            with _sent_by(party):
                values = wire.unpack(array, dtype, shape).view(np.uint32)
            total = values.copy() if total is None else np.add(total, values, out=total)
    return None if total is None else wire.pack(total.view(np.int32), dtype)


def _value(
    transport: Transport,
    grown: Sequence[msg.Grown],
    number: int,
    params: TrainParams,
    exponents: _Exponents,
    n_features: int,
    masks: _Masks,
) -> tuple[list[Tree], list[msg.AdoptedTree], Doubles | None]:
    """The finished trees, what the parties are told of them, and what each feature gained where that is known."""
    structures = [structure for reply in grown for structure in reply.trees]
    trees = [wire.tree_from_message(structure, n_features) for structure in structures]
    step = shared_step(params.learning_rate, len(grown))
    if params.leaf_values == "builder":
        packed = [values for reply in grown for values in reply.values or []]
        values = [step * wire.unpack(v, "f4", (t.n_leaves,)) for v, t in zip(packed, trees, strict=True)]
        valued_trees = [t.with_leaf_values(v) for t, v in zip(trees, values, strict=True)]
        adopted = [msg.AdoptedTree(values=wire.pack(v), structure=s) for v, s in zip(values, structures, strict=True)]
        return valued_trees, adopted, None
    params = msgspec.structs.replace(params, learning_rate=params.learning_rate * float(step))
    question = msg.SumPerLeaf(round=number, trees=structures, exponents=exponents.leaf, mask=masks.next())
    replies = _ask_all(transport, question, msg.LeafSums)
    for party, reply in replies.items():
        with _sent_by(party):
            _of_round(reply, number, party)
            _refuse_unless(len(reply.gradients) == len(reply.hessians) == len(trees), "sums of other trees")
    finished, adopted, gains = [], [], np.zeros(n_features)
    for i, tree in enumerate(trees):
        G = _leaf_total({p: r.gradients[i] for p, r in replies.items()}, tree.n_leaves, exponents.leaf[0])
        H = _leaf_total({p: r.hessians[i] for p, r in replies.items()}, tree.n_leaves, exponents.leaf[1])
        H = np.maximum(H, exponents.least_hessian())
        final, leaf_values = _leaf_values(params)(tree, G, H, params)
        gains += gain_of_features(tree, final, G, H, params, n_features)
        finished.append(final)
        adopted.append(msg.AdoptedTree(values=wire.pack(leaf_values), structure=None))
    return finished, adopted, gains


def _leaf_values(params: TrainParams) -> Callable[..., tuple[Tree, Any]]:
    """How the recipe turns the sums of all parties into leaf values."""
    return prune if params.extra_depth else keep_all


def shared_step(learning_rate: float, n_builders: int) -> np.float32:
    """The part of its own step that each of several trees takes that were built at once.

    They all point the same way. Together they go as far as so many trees would go one after the other.

    >>> float(shared_step(0.1, 1)), round(float(shared_step(0.1, 10)), 2)
    (1.0, 0.65)
    """
    together = 1 - max(1 - learning_rate, 0.0) ** n_builders
    return np.float32(1.0 if n_builders == 1 else together / (learning_rate * n_builders))


def _leaf_total(arrays: Mapping[str, msg.Array], n_leaves: int, exponent: int) -> Doubles:
    total = np.zeros(n_leaves, dtype=np.uint64)  # modulo 2 ** 64, in which masks cancel
    for party, array in arrays.items():
        with _sent_by(party):
            total += wire.unpack(array, "i8", (n_leaves,)).view(np.uint64)
    return from_ints(total.view(np.int64), exponent)


class _Watch:
    """Keeps the history, tells the callbacks, and decides when to stop."""

    def __init__(
        self, training: Training, transport: Transport, callbacks: Sequence[Callback], journal: Journal | None
    ) -> None:
        self.training, self.transport, self.callbacks, self.journal = training, transport, callbacks, journal
        self.loss = LOSSES[training.params.objective]
        self.builder = ""
        self.absent: list[str] = []
        self.turn = 0  # the next one
        self.rematched_at: int | None = None
        self.matched_by: list[str] | None = None
        self.most_uses: dict[str, int] = {}
        self.stopped = False
        self.clock, self.bytes = time.perf_counter(), transport.traffic.total
        self.best = math.inf
        for callback in callbacks:
            callback.before_training(training.prepared.parties, training.params)
        for entry in journal.entries if journal else []:
            self._remember(entry)

    def _remember(self, entry: Any) -> None:
        """Take up an entry of the journal as if it happened now."""
        if isinstance(entry, Grew):
            n_features = self.training.prepared.n_features
            self.training.rounds.append([_tree(finished, n_features) for finished in entry.trees])
            if entry.gains is not None:
                self.training.gains.append(np.array(entry.gains))
            self.turn, self.builder, self.absent = entry.turn + 1, ", ".join(entry.builders), entry.absent
        elif isinstance(entry, Scored):
            self.stopped = self._take(entry.record)
        elif isinstance(entry, Rematched):
            self.rematched_at, self.matched_by, self.most_uses = entry.round, entry.parties, entry.most_uses

    def _note(self, entry: Any, *, sync: bool = True) -> None:
        if self.journal is not None:
            self.journal.append(entry, sync=sync)

    def rematched(self, number: int, parties: list[str], most_uses: dict[str, int]) -> None:
        """The similar rows were found anew."""
        self.rematched_at, self.matched_by, self.most_uses = number, parties, most_uses
        self._note(Rematched(round=number, parties=parties, most_uses=most_uses))

    def built(
        self,
        turn: int,
        builders: list[str],
        trees: list[Tree],
        grown: Sequence[msg.Grown],
        adopted: Sequence[msg.AdoptedTree],
        gains: Doubles | None,
    ) -> None:
        """A round's trees are finished; their scores come with the next replies."""
        self.turn, self.builder = turn + 1, ", ".join(builders)
        self.absent = [party for party in self.training.prepared.parties if party not in self.transport.parties]
        self.training.rounds.append(trees)
        if gains is not None:
            self.training.gains.append(gains)
        if self.journal is not None:
            structures = [structure for reply in grown for structure in reply.trees]
            entry = Grew(
                round=len(self.training.rounds) - 1,
                turn=turn,
                builders=builders,
                absent=self.absent,
                gains=None if gains is None else gains.tolist(),
                adopted=[
                    msg.AdoptedTree(values=a.values, structure=s) for a, s in zip(adopted, structures, strict=True)
                ],
                trees=[
                    FinishedTree(structure=wire.tree_to_message(t), values=wire.pack(t.value[t.leaves])) for t in trees
                ],
            )
            self.journal.append(entry)

    def scored(self, scores: Sequence[msg.Scores]) -> bool:
        """The scores of the last trees came in. True: stop now."""
        if len(self.training.history) == len(self.training.rounds):
            return False
        now, n_bytes = time.perf_counter(), self.transport.traffic.total
        train, validation = self._totals(scores)
        record = TreeRecord(
            round=len(self.training.history),
            builder=self.builder,
            train=self._mean(*train),
            validation=self._mean(*validation),
            bytes=n_bytes - self.bytes,
            seconds=now - self.clock,
            absent=self.absent,
        )
        self.clock, self.bytes = now, n_bytes
        self._note(Scored(record=record), sync=False)  # the next tree's entry brings it to the disk
        asked = [callback.after_tree(record) for callback in self.callbacks]  # every callback is told
        self.stopped = self._take(record) or any(asked)
        return self.stopped

    def _take(self, record: TreeRecord) -> bool:
        self.training.history.append(record)
        return self._no_better(record)

    def _totals(self, scores: Sequence[msg.Scores]) -> tuple[tuple[dict[str, float], float], ...]:
        """Sums of the metrics and weights over all parties, of training and of validation rows."""
        names = self.loss.metrics
        if all(s.masked is None for s in scores):
            columns = [
                [
                    *(s.train.get(n, 0.0) for n in names),
                    s.train_weight,
                    *(s.validation.get(n, 0.0) for n in names),
                    s.validation_weight,
                ]
                for s in scores
            ]
            totals = [math.fsum(column) for column in zip(*columns, strict=True)]
        else:
            n = 2 * len(names) + 2
            totals = wide_total([_wide(s.masked, n) for s in scores if s.masked])
        half = len(names) + 1
        return tuple((dict(zip(names, part[:-1], strict=True)), part[-1]) for part in (totals[:half], totals[half:]))

    def _mean(self, sums: dict[str, float], weight: float) -> dict[str, float]:
        return self.loss.finish(sums, weight) if weight else {}

    def _no_better(self, record: TreeRecord) -> bool:
        patience = self.training.params.early_stopping_rounds
        if not patience:
            return False
        value = record.validation.get(self.loss.metric, math.inf)
        if value < self.best:
            self.best, self.training.best_round = value, record.round
        return record.round - (self.training.best_round or 0) >= patience

    def close(self) -> None:
        """Tell the callbacks that it is over, also after an error."""
        for callback in self.callbacks:
            callback.after_training(self.training.history)

    def best_trees(self) -> Training:
        """The training, cut back to its best round where early stopping watched."""
        if self.training.best_round is not None:
            del self.training.rounds[self.training.best_round + 1 :]
            del self.training.gains[self.training.best_round + 1 :]
        return self.training


def _tree(finished: FinishedTree, n_features: int) -> Tree:
    tree = wire.tree_from_message(finished.structure, n_features)
    return tree.with_leaf_values(wire.unpack(finished.values, "f4", (tree.n_leaves,)))


# --- asking ----------------------------------------------------------------------------------------------------------


def _ask_all(transport: Transport, question: msg.Request, kind: type[wire.R]) -> dict[str, wire.R]:
    """Ask everybody the same."""
    return _ask_each(transport, dict.fromkeys(transport.parties, question), kind)


def _ask_each(transport: Transport, questions: Mapping[str, msg.Request], kind: type[wire.R]) -> dict[str, wire.R]:
    """Ask each its own; the replies stand in the order of the questions, in whatever order they came."""
    replies = transport.ask_all(questions)
    return {party: wire.expect(kind, replies[party], party) for party in questions}


@contextmanager
def _sent_by(party: str) -> Iterator[None]:
    """Say whose message it was that could not be."""
    try:
        yield
    except ProtocolError as error:
        raise ProtocolError(f"Party {party!r} sent what cannot be: {str(error).removesuffix('.')}.") from None


def _refuse_unless(sound: bool, fact: str) -> None:
    if not sound:
        raise ProtocolError(f"{fact}.")


def _of_round(reply: Any, number: int, party: str) -> Any:
    if reply.round != number:
        raise ProtocolError(f"Party {party!r} replied for tree {reply.round} where {number} belongs.")
    return reply
