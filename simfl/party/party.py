"""A party: the only home of its rows and labels. It answers the hub's messages and sends nothing else.

`Party.handle` takes a message of `messages.py` and returns one. What a reply contains is what leaves the house.
"""

from __future__ import annotations

import copy
import hashlib
import os
import secrets
import struct
import zipfile
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import xgboost as xgb
from scipy import sparse

from simfl import messages as msg
from simfl import wire
from simfl.arrays import AnyArray, Doubles, Floats, Ints, Longs, Table, smallest_type
from simfl.data.arrow import as_arrow, check_names
from simfl.data.schema import Schema, xgboost_types
from simfl.data.table import as_labels, as_table, as_weights, class_numbers, plain_classes
from simfl.errors import DataError, FileError, PrivacyError, ProtocolError
from simfl.params import BINS, Objective, TrainParams, cores
from simfl.preprocessing.expansion import Expansion
from simfl.preprocessing.lsh import HashFamily, hash_rows
from simfl.preprocessing.scaling import Scale, moments
from simfl.preprocessing.similarity import HashIndex, order_by_likeness
from simfl.preprocessing.tables import HashValues, bucket_numbers
from simfl.privacy.keys import Identity, Keys, sign, verify
from simfl.privacy.masks import Masks
from simfl.privacy.noise import Noise, add_noise, plan
from simfl.privacy.sums import ROW_BITS, fold, int_type, power_above, to_leaf_ints, to_row_ints
from simfl.privacy.tokens import (
    SECRET_BYTES,
    asking,
    derive,
    direction_seed,
    draw_key,
    fresh_order,
    hide_values,
    private_order,
    row_names,
    secret_of,
)
from simfl.privacy.wide import to_wide, to_words
from simfl.training import cuts, trees
from simfl.training.gradients import add_values, draw_similar, most_uses, sum_onto_similar, sum_per_leaf, weighted
from simfl.training.groups import join_small_groups
from simfl.training.losses import LOSSES, Loss
from simfl.training.traversal import Walker, walker
from simfl.training.trees import Tree


@dataclass
class Rows:
    """Labelled rows: those trained on, or those set aside for validation."""

    X: Table
    y: AnyArray
    weight: Floats | None

    @property
    def total_weight(self) -> float:
        """The sum of the weights."""
        return float(len(self.y)) if self.weight is None else float(self.weight.sum(dtype=np.float64))

    def part(self, rows: AnyArray) -> Rows:
        """Some of the rows."""
        return Rows(self.X[rows], self.y[rows], None if self.weight is None else self.weight[rows])


@dataclass
class Watched:
    """Rows under training: their labels as numbers, their margins, the leaf that each fell into last."""

    walker: Walker
    y: Floats
    weight: Floats | None
    margin: Floats
    leaves: list[Ints] = field(default_factory=list)

    def fall(self, grown: list[Tree]) -> None:
        """Find every row's leaf in each tree."""
        self.leaves = [self.walker.leaf_numbers(tree) for tree in grown]

    def add(self, values: list[AnyArray]) -> None:
        """Add the leaf values to the margins: every builder's trees stand in the order of the outputs."""
        for number, (leaf, value) in enumerate(zip(self.leaves, values, strict=True)):
            add_values(self.margin, number % self.margin.shape[1], leaf, value)


@dataclass
class Run:
    """The state of one training."""

    params: TrainParams
    seed: int
    loss: Loss
    train: Watched
    validation: Watched | None
    similar: dict[str, Ints]
    near: Ints | None  # the rows in an order in which like ones stand together
    places: Ints | None  # blind matching: the row at each place of the order that the others know
    fallen: deque[AnyArray]  # the leaves of the last trees
    n_parties: int = 1
    noise: Noise | None = None
    points: list[Floats | None] | None = None  # the cut points that all parties share, if they do
    released: dict[str, int] = field(default_factory=dict)  # sums with noise so far
    grower: trees.Grower | None = None
    seen: list[Tree] = field(default_factory=list)
    g: Floats = field(default_factory=lambda: np.empty((0, 0), np.float32))
    h: Floats = field(default_factory=lambda: np.empty((0, 0), np.float32))

    @property
    def watched(self) -> list[Watched]:
        """All rows that follow the model."""
        return [self.train] + ([self.validation] if self.validation else [])


@dataclass(frozen=True)
class _Kept:
    """What a search for similar rows left at a party."""

    similar: dict[str, Ints]
    near: Ints | None
    places: Ints | None
    secret: bytes | None


class Party:
    """One organisation with its table.

    Parameters
    ----------
    name : how the others call it
    X : rows by features: a data frame (pandas, Polars, Arrow), NumPy or scipy.sparse. Text columns are categories.
        NaN, null and what a sparse table does not store are missing.
    y : one label per row
    sample_weight : one weight per row, optional
    validation : (X, y) or (X, y, sample_weight), rows that are not trained on but watched, optional
    columns : names of the features, where the table has none
    schema : the columns that the study has agreed on; without it a data frame suggests its own

    >>> Party("north", [[1.0, 2.0], [3.0, 4.0]], [0, 1])
    Party('north', 2 rows, 2 features)
    """

    def __init__(
        self,
        name: str,
        X: Any,
        y: Any,
        sample_weight: Any = None,
        validation: Any = None,
        columns: list[str] | None = None,
        schema: Schema | None = None,
    ) -> None:
        if not isinstance(name, str) or not name:
            raise DataError(f"A party's name must be a text that is not empty, not {name!r}.")
        self.name = name
        self.n_jobs = cores()
        self.folder: Path | None = None  # where similar rows are kept, for a training to be taken up again
        self.progress: Callable[[int, int], None] | None = None  # told about a long search: rows done, rows in all
        self.rows, self.schema = self._read(X, y, sample_weight, schema)
        if columns is not None:
            self.schema = self._renamed(columns)
        self.validation = self._read_validation(validation)
        self.training_rows: Rows = self.rows
        self.validation_rows: Rows | None = self.validation
        self.secret: bytes | None = None  # that all parties of a training have in common, and the hub does not
        self.identity: Identity | None = None  # a certificate, where the party has one
        self.must_mask = False  # refuse to send sums that are not masked
        self._keys: Keys | None = None
        self._masks: Masks | None = None
        self._hashes: HashValues | None = None
        self._hidden: Ints | None = None  # the private order of rows whose similar rows are being sought
        self._places: Ints | None = None
        self._near: Ints | None = None
        self._order: list[str] = [name]
        self._similar: dict[str, Ints] = {}
        self._n_rows: dict[str, int] = {}
        self._bins: dict[int, xgb.QuantileDMatrix] = {}
        self._run: Run | None = None

    def __repr__(self) -> str:
        return f"Party({self.name!r}, {self.rows.X.shape[0]} rows, {self.rows.X.shape[1]} features)"

    def __str__(self) -> str:
        return f"Party {self.name!r}"

    @property
    def columns(self) -> list[str] | None:
        """The names of the features, where there are any."""
        return self.schema.names if self.schema else None

    def _read(self, X: Any, y: Any, weight: Any, schema: Schema | None) -> tuple[Rows, Schema | None]:
        table, found = as_table(X, str(self), schema)
        n = table.shape[0]
        return Rows(table, as_labels(y, n, str(self)), as_weights(weight, n, str(self))), found

    def _renamed(self, given: list[str]) -> Schema:
        if len(given) != self.rows.X.shape[1]:
            raise DataError(f"{self} has {self.rows.X.shape[1]} features but {len(given)} names for them.")
        names = [str(name) for name in given]
        check_names(names, str(self))
        return self.schema.renamed(names) if self.schema else Schema.of_numbers(names)

    def _read_validation(self, validation: Any) -> Rows | None:
        if validation is None:
            return None
        if not isinstance(validation, tuple | list) or len(validation) not in (2, 3):
            raise DataError(f"{self} has validation rows of the wrong form. Give validation=(X, y).")
        X, y, weight = (*validation, None)[:3]
        named = as_arrow(X, str(self))
        if named is not None and self.columns and set(named.column_names) != set(self.columns):
            raise DataError(f"{self} has other columns in its validation rows than in its own rows.")
        rows, _ = self._read(X, y, weight, self.schema if named is not None else None)
        if rows.X.shape[1] != self.rows.X.shape[1]:
            raise DataError(f"{self} has other columns in its validation rows than in its own rows.")
        return rows

    def fresh(self) -> Party:
        """The same table with no memory of any preparation or training."""
        other = copy.copy(self)
        other._hashes, other._order, other._similar, other._n_rows, other._run = (
            None,
            [self.name],
            {},
            {},
            None,
        )
        other.training_rows, other.validation_rows, other._bins = self.rows, self.validation, {}
        other._keys, other._masks, other._hidden, other._places = None, None, None, None
        other._near = None
        return other

    def part(self, name: str, rows: AnyArray) -> Party:
        """Some of the rows as a party of its own, for a rehearsal."""
        other = self.fresh()
        other.name, other.rows, other.validation = name, self.rows.part(rows), None
        other.training_rows, other.validation_rows = other.rows, None
        other._order = [name]
        return other

    # --- the door ----------------------------------------------------------------------------------------------------

    def handle(self, message: msg.Request) -> msg.Reply:
        """Answer a message of the hub."""
        answer = self._answers.get(type(message))
        if answer is None:
            raise ProtocolError(f"{self} cannot answer {type(message).__name__}.")
        reply: msg.Reply = answer(self, message)
        return reply

    # --- stage 1 -----------------------------------------------------------------------------------------------------

    def _describe(self, message: msg.Describe) -> msg.Description:
        if message.version != msg.VERSION:
            raise ProtocolError(
                f"{self} speaks version {msg.VERSION} of the protocol, the hub {message.version}. "
                "Install the same version of simfl everywhere."
            )
        self._set_aside(message.validation_fraction, message.seed)
        return msg.Description(
            version=msg.VERSION,
            n_rows=len(self.training_rows.y),
            n_validation_rows=len(self.validation_rows.y) if self.validation_rows else 0,
            n_features=self.rows.X.shape[1],
            columns=list(self.schema.columns) if self.schema else None,
            is_sparse=sparse.issparse(self.rows.X),
            secret=self.secret and derive(self.secret, "digest")[:8],
        )

    def _settle(self, message: msg.Settle) -> msg.Settled:
        """Rows come into the order, and categories get the numbers, that all parties agreed on."""
        self.settle(Schema(tuple(message.columns)))
        return msg.Settled()

    def settle(self, agreed: Schema) -> None:
        """Read the table through the schema of all parties."""
        own = self.schema
        if own is None or own == agreed:
            return
        if sorted(own.names) != sorted(agreed.names):
            raise ProtocolError(f"{self} has the columns {own.names} and was told to have {agreed.names}.")
        aside = self.training_rows is not self.rows
        self.rows = replace(self.rows, X=agreed.recode(self.rows.X, own))
        if self.validation is not None:
            self.validation = replace(self.validation, X=agreed.recode(self.validation.X, own))
        if aside:
            self.training_rows = replace(self.training_rows, X=agreed.recode(self.training_rows.X, own))
            if self.validation_rows is not None:
                self.validation_rows = replace(self.validation_rows, X=agreed.recode(self.validation_rows.X, own))
        else:
            self.training_rows, self.validation_rows = self.rows, self.validation
        self.schema, self._bins = agreed, {}

    @property
    def expansion(self) -> Expansion:
        """How the columns are laid out for hashing."""
        return Expansion(self.schema.n_levels if self.schema else np.zeros(self.rows.X.shape[1], dtype=np.int32))

    def _introduce(self, message: msg.Introduce) -> msg.Introduced:
        self._keys = Keys(self.name)
        signed = sign(self.identity, self.name, self._keys.public) if self.identity else (None, None)
        return msg.Introduced(public=msg.SignedKey(key=self._keys.public, signature=signed[0], certificate=signed[1]))

    def _meet(self, message: msg.Meet) -> msg.Met:
        keys = self._keys
        if keys is None or message.keys.get(self.name) is None or message.keys[self.name].key != keys.public:
            raise ProtocolError(f"{self} was introduced to the others under a key that is not its own.")
        if self.identity:
            for name, signed in message.keys.items():
                verify(self.identity.root, name, signed.key, signed.signature, signed.certificate)
        keys.meet({name: signed.key for name, signed in message.keys.items()})
        self._masks = Masks(keys)
        if message.sealed is None:
            self.secret = self.secret or secrets.token_bytes(SECRET_BYTES)
            return msg.Met(sealed={other: keys.seal(other, self.secret) for other in keys.pairs})
        self.secret = keys.open(message.first, message.sealed)
        return msg.Met(sealed={})

    def _set_aside(self, fraction: float, seed: int) -> None:
        self.training_rows, self.validation_rows = self.rows, self.validation
        n = len(self.rows.y)
        n_aside = min(round(fraction * n), n - 1)  # one row at least is trained on
        if self.validation is None and n_aside > 0:
            order = np.random.default_rng([seed, 3, *self.name.encode()]).permutation(n)
            self.validation_rows = self.rows.part(np.sort(order[:n_aside]))
            self.training_rows = self.rows.part(np.sort(order[n_aside:]))

    # --- masks -------------------------------------------------------------------------------------------------------

    def _masking(self, mask: msg.Masking | None) -> Masks | None:
        """The masks to use, None where sums are to be sent as they are."""
        if mask is None:
            if self.must_mask:
                raise PrivacyError(
                    f"{self} was asked for sums without masks, and masks were agreed on. It sends nothing."
                )
            return None
        if self._masks is None:
            raise ProtocolError(f"{self} was asked for masked sums before it had met the others.")
        return self._masks

    def _wide(self, values: AnyArray, mask: msg.Masking | None, purpose: str) -> msg.Array:
        """Real numbers as masked wide ones."""
        masks = self._masking(mask)
        if masks is None or mask is None:
            raise ProtocolError(f"{self} was asked for masked sums without masks.")
        hidden = masks.draw_wide(mask.parties, mask.step, purpose, values.size)
        return wire.pack(to_words([v + m for v, m in zip(to_wide(values.tolist()), hidden, strict=True)]))

    def _measure(self, message: msg.Measure) -> msg.FeatureMoments:
        found = moments(self.expansion.expand(self.training_rows.X))
        several = found.counts > 1  # the sum of one value would be that value: the others' scale will do
        parts = {"counts": found.counts, "sums": found.sums, "squares": found.squares}
        mask = message.mask
        if self._masking(mask) is None or mask is None:
            return msg.FeatureMoments(**{name: wire.pack(part * several) for name, part in parts.items()})
        hidden = {name: self._wide(part * several, mask, name) for name, part in parts.items()}
        return msg.FeatureMoments(**hidden)

    def _hash(self, message: msg.Hash) -> msg.Hashes | msg.HiddenRows:
        expansion = self.expansion
        d = expansion.width
        seed = direction_seed(self._secret()) if message.seed is None else message.seed
        scale = Scale(wire.unpack(message.mean, "f8", (d,)), wire.unpack(message.deviation, "f8", (d,)), np.nan)
        family = HashFamily.draw(seed, message.n_hashes, d, message.bucket_width, message.law)
        hashes = HashValues.of(hash_rows(expansion.expand(self.training_rows.X), family, scale))
        if message.seed is None:
            return self._hide(hashes, None)
        self._hashes = hashes
        return msg.Hashes(lowest=wire.pack(self._hashes.lowest), values=wire.pack(self._hashes.above))

    def _secret(self) -> bytes:
        if self.secret is None:
            raise ProtocolError(f"{self} was asked to hide its rows before it had a secret in common with the others.")
        return self.secret

    def _hide(self, hashes: HashValues, number: int | None) -> msg.HiddenRows:
        """The hash values under names, the rows in an order that only this party knows."""
        kept = self._kept(number)
        if kept is not None:  # ids of an earlier search stand in other orders: they must not meet these
            kept.unlink(missing_ok=True)
        names, codes = hide_values(self._secret(), hashes, number)
        self._hidden = private_order(len(codes))
        self._remember_order(hashes.above, number)
        rows = row_names(self._secret(), self.name, number, len(codes))
        return msg.HiddenRows(
            round=number,
            names=[wire.pack(n) for n in names],
            codes=wire.pack(codes[self._hidden]),
            ties=wire.pack(rows[self._hidden]),
        )

    def _remember_order(self, hashes: AnyArray, number: int | None) -> None:
        near = order_by_likeness(hashes)
        if number is None:
            self._near = near
        else:
            self._running().near = near

    def _take_similar(self, message: msg.TakeSimilar) -> msg.SimilarTaken:
        if self._hidden is None:
            raise ProtocolError(f"{self} was given similar rows that it had not asked for.")
        order, self._hidden = self._hidden, None
        similar = {}
        for other, array in message.similar.items():
            ids = self._ids(array, len(order), message.n_rows[other])
            similar[other] = np.empty_like(ids)
            similar[other][order] = ids
        self._order, self._n_rows = message.parties, message.n_rows | {self.name: len(order)}
        if message.round is None:
            self._similar, self._places = similar, order
        else:
            run = self._running()
            run.similar, run.places = similar, order
        self._keep_match(message.round, similar)
        return msg.SimilarTaken(round=message.round)

    def _ids(self, array: msg.Array, n: int, n_rows: int) -> Ints:
        """Ids of another party's rows, if they are: they are going to be written to."""
        ids = wire.unpack(array, array.dtype, (n, None))
        if ids.dtype.kind != "u" or ids.shape[1] < 1 or (ids.size and ids.max() >= n_rows):
            raise ProtocolError(f"{self} was given similar rows that are none of another party's {n_rows} rows.")
        return ids.astype(np.int32)

    def _hashed(self) -> HashValues:
        if self._hashes is None:
            raise ProtocolError(f"{self} was asked to match its rows before it had hashed them.")
        return self._hashes

    def _match(self, message: msg.Match) -> msg.Matched:
        values = [wire.unpack(v, "i4", (None,)) for v in message.bucket_values]
        own = bucket_numbers(self._hashed(), values)
        self._remember_order(self._hashed().above, message.round)
        self._order = message.parties
        names = asking(row_names(secret_of(message.seed), self.name, message.round, len(own)))
        similar: dict[str, Ints] = {}
        equal: dict[str, float] = {}
        tables = {o: wire.unpack(array, array.dtype, (None, own.shape[1])) for o, array in message.tables.items()}
        index = HashIndex([own, *tables.values()])
        bound = message.max_candidates and max(message.max_candidates, message.n_neighbors)
        asker = index.queries(0, names)
        for number, (other, codes) in enumerate(tables.items(), 1):
            others_names = row_names(secret_of(message.seed), other, message.round, len(codes))
            similar[other], counts = index.compare(
                asker,
                index.candidates(number, others_names, bound),
                message.n_neighbors,
                draw_key=draw_key(message.seed, message.round, *map(message.parties.index, (self.name, other))),
                n_jobs=self.n_jobs,
                progress=self.progress,
            )
            self._n_rows[other], equal[other] = len(codes), float(counts[:, 0].mean())
        self._hashes = None
        if message.round is None:
            self._similar, self._places = similar, None
        else:
            self._running().similar, self._running().places = similar, None
        self._keep_match(message.round, similar)
        uses = max(most_uses(rows, self._n_rows[other]) for other, rows in similar.items())
        return msg.Matched(equal_hashes=equal, most_uses=uses)

    def found_by(self) -> dict[str, AnyArray]:
        """Per other party: how often each of its rows is among this party's similar rows."""
        return {
            other: np.bincount(rows.ravel(), minlength=self._n_rows[other]) for other, rows in self._similar.items()
        }

    def keep(self, path: Path, similar: dict[str, Ints] | None = None) -> None:
        """Write what stage 1 (or a rematch) found, for later trainings. Holds row ids, no rows."""
        found = self._similar if similar is None else similar
        arrays: dict[str, AnyArray] = {f"similar_{i}": found[o] for i, o in enumerate(self._order) if o in found}
        sizes = np.array([self._n_rows.get(o, 0) for o in self._order])
        arrays |= {"order": np.array(self._order), "n_rows": sizes, "fingerprint": np.array(self.fingerprint())}
        near, places = (self._near, self._places) if similar is None else (self._running().near, self._running().places)
        if near is not None:
            arrays["near"] = near
        if places is not None and self.secret is not None:
            arrays |= {"places": places, "secret": np.frombuffer(self.secret, dtype=np.uint8)}
        unfinished = path.with_name(f".{path.name}.unfinished.npz")
        try:
            with unfinished.open("wb") as file:
                np.savez(file, allow_pickle=False, **arrays)
                file.flush()
                os.fsync(file.fileno())
            unfinished.replace(path)
        finally:
            unfinished.unlink(missing_ok=True)

    def recall(self, path: Path, validation_fraction: float, seed: int, agreed: Schema | None = None) -> None:
        """Read back what `keep` wrote; refuse it if the table has changed since."""
        if agreed and self.columns and sorted(self.columns) == sorted(agreed.names):
            self.settle(agreed)
        self._set_aside(validation_fraction, seed)
        self._take_kept(self._read_kept(path))

    def _read_kept(self, path: Path) -> _Kept:
        try:
            with np.load(path, allow_pickle=False) as file:
                kept = dict(file)
            known, order, sizes = str(kept["fingerprint"]), kept["order"].tolist(), kept["n_rows"].tolist()
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
            raise FileError(f"{path} cannot be read. Run simfl.prepare again.") from None
        if known != self.fingerprint():
            raise FileError(
                f"The table of party {self.name!r} is not the one that {path} was prepared from. "
                "Run simfl.prepare again."
            )
        self._order, self._n_rows = order, dict(zip(order, sizes, strict=True))
        found = {o: kept[f"similar_{i}"] for i, o in enumerate(order) if f"similar_{i}" in kept}
        secret = kept["secret"].tobytes() if "secret" in kept else None
        return _Kept(found, kept.get("near"), kept.get("places"), secret)

    def _recall(self, message: msg.Recall) -> msg.Recalled:
        path = self._kept(message.round)
        if path is None or not path.exists():
            return msg.Recalled(found=False)
        kept = self._read_kept(path)
        if message.round is None:
            self._take_kept(kept)
        else:
            run = self._running()
            run.similar, run.near, run.places = kept.similar, kept.near, kept.places
        return msg.Recalled(found=True)

    def _take_kept(self, kept: _Kept) -> None:
        self._similar, self._near, self._places = kept.similar, kept.near, kept.places
        self.secret = kept.secret or self.secret

    def _keep_match(self, number: int | None, similar: dict[str, Ints]) -> None:
        path = self._kept(number)
        if path is not None:
            self.keep(path, None if number is None else similar)

    def _kept(self, number: int | None) -> Path | None:
        """Where the similar rows of a round are kept, if this party keeps them."""
        return self.folder and self.folder / f"similar-{'first' if number is None else number}.npz"

    def fingerprint(self) -> str:
        """A digest of the rows that stage 1 depends on."""
        X = self.training_rows.X
        digest = hashlib.blake2b(repr((X.shape, self.schema)).encode(), digest_size=16)
        for part in (X.data, X.indices, X.indptr) if sparse.issparse(X) else (X,):
            digest.update(np.ascontiguousarray(part).data)
        return digest.hexdigest()

    # --- stage 2 -----------------------------------------------------------------------------------------------------

    def _describe_labels(self, message: msg.DescribeLabels) -> msg.LabelSummary:
        if not message.only_classes:
            self._masking(None)
        found = self._summary(message.objective)
        return msg.LabelSummary(classes=found.classes, sums=[], weight=0.0) if message.only_classes else found

    def _summary(self, objective: Objective) -> msg.LabelSummary:
        y, weight = self.training_rows.y, self.training_rows.weight
        if LOSSES[objective].classifies:
            return self._describe_classes(y, weight)
        numbers = self._as_numbers(y)
        total = float(numbers.sum()) if weight is None else float(numbers @ weight.astype(np.float64))
        return msg.LabelSummary(classes=None, sums=[total], weight=self.training_rows.total_weight)

    def _sum_labels(self, message: msg.SumLabels) -> msg.LabelSums:
        found = self._summary(message.objective)
        sums = found.sums
        if message.classes is not None:
            own = dict(zip(found.classes or [], found.sums, strict=True))
            sums = [own.get(c, 0.0) for c in message.classes]
        return msg.LabelSums(sums=self._wide(np.array([*sums, found.weight]), message.mask, "labels"))

    def _describe_classes(self, y: AnyArray, weight: Floats | None) -> msg.LabelSummary:
        classes = plain_classes(y if self.validation_rows is None else np.concatenate([y, self.validation_rows.y]))
        if len(classes) > msg.MOST_CLASSES or any(isinstance(c, float) for c in classes):
            raise DataError(
                f"{self} has labels that look like numbers, not classes ({classes[:3]}). "
                "Use objective='reg:squarederror'."
            )
        numbers = class_numbers(y, classes, str(self)).astype(np.int64)
        sums = np.bincount(numbers, weights=weight, minlength=len(classes))
        return msg.LabelSummary(classes=classes, sums=sums.tolist(), weight=self.training_rows.total_weight)

    def _as_numbers(self, y: AnyArray) -> Doubles:
        try:
            numbers = np.asarray(y, dtype=np.float64)
        except (TypeError, ValueError):
            raise DataError(
                f"{self} has labels that are not numbers. "
                "Use objective='binary:logistic' or 'multi:softprob' for classes."
            ) from None
        if not (np.abs(numbers) < 1e18).all():  # their squares would leave float32
            raise DataError(f"{self} has labels beyond 1e18. Drop these rows, or measure in a larger unit.")
        return numbers

    def _start(self, message: msg.Start) -> msg.Started:
        loss = LOSSES[message.params.objective]
        train = self._watch(self.training_rows, message)
        held_out = self._watch(self.validation_rows, message) if self.validation_rows else None
        self._run = Run(
            message.params,
            message.seed,
            loss,
            train,
            held_out,
            self._similar,
            self._near,
            self._places,
            deque(maxlen=message.remember),
            message.n_parties,
            self._noise(message),
            self._cut_points(message),
        )
        n_outputs = len(message.base_margin)
        for first in range(0, len(message.earlier), n_outputs):
            self._adopt(self._run, message.earlier[first : first + n_outputs])
        g, h = loss.bounds(train.margin, train.y)
        heaviest = 1.0 if self.training_rows.weight is None else float(self.training_rows.weight.max())
        total = self.training_rows.total_weight
        bounds = {
            "gradient": g * heaviest,
            "hessian": h * heaviest,
            "total_gradient": g * total,
            "total_hessian": h * total,
        }
        return msg.Started(**{name: power_above(bound) for name, bound in bounds.items()})

    def _noise(self, message: msg.Start) -> Noise | None:
        found = plan(message.params, message.n_rounds, message.n_parties, shares_rows=message.shares_rows)
        weight = self.training_rows.weight
        if found is not None and weight is not None and weight.max() > 1:
            raise DataError(f"{self} has rows of weight above 1: epsilon counts a row as one. Scale the weights down.")
        return found

    def _cut_points(self, message: msg.Start) -> list[Floats | None] | None:
        """A grid per column; None for a category, whose levels are known to all."""
        if message.mean is None or message.deviation is None:
            return None
        expansion = self.expansion
        mean, deviation = (wire.unpack(a, "f8", (expansion.width,)) for a in (message.mean, message.deviation))
        first = np.flatnonzero(np.diff(expansion.groups, prepend=-1))
        points = cuts.grid(mean[first], deviation[first], message.params.max_bin or BINS)
        return [None if n else own for n, own in zip(expansion.n_levels, points, strict=True)]

    def _replay(self, message: msg.Replay) -> msg.Replayed:
        run = self._running()
        for trees_of_round in message.rounds:
            self._adopt(run, trees_of_round)
        return msg.Replayed()

    def _hash_by_trees(self, message: msg.HashByTrees) -> msg.LeavesOfRows | msg.HiddenRows:
        """Leaves as hash values: rows that fall into the same leaves resemble each other as the model sees it."""
        run = self._running()
        self._adopt(run, message.previous)
        recent = list(run.fallen)[-message.n_hashes :]
        if not recent:
            raise ProtocolError(f"{self} was asked for the leaves of its rows before there was a tree.")
        leaves = np.stack(recent, axis=1)  # in the type of the largest tree
        hashes = HashValues(np.zeros(leaves.shape[1], dtype=np.int32), leaves)
        if message.blind:
            return self._hide(hashes, message.round)
        self._hashes = hashes
        return msg.LeavesOfRows(round=message.round, leaves=wire.pack(leaves))

    def _watch(self, rows: Rows, message: msg.Start) -> Watched:
        if message.classes is not None:
            y = class_numbers(rows.y, message.classes, str(self))
        else:
            y = self._as_numbers(rows.y).astype(np.float32)
        margin = np.tile(np.array(message.base_margin, dtype=np.float32), (len(y), 1))
        by_level = self.schema is not None and self.schema.has_categories
        return Watched(walker(rows.X, by_level=by_level), y, rows.weight, margin)

    def _running(self) -> Run:
        if self._run is None:
            raise ProtocolError(f"{self} was asked to train before a training began.")
        return self._run

    def _adopt(self, run: Run, previous: list[msg.AdoptedTree]) -> None:
        """Add the previous trees to the margins, then the gradients are those of the new model."""
        if previous:
            structures = [p.structure for p in previous]
            if all(s is not None for s in structures):
                self._see(run, [s for s in structures if s is not None])
            if len(run.seen) != len(previous):
                raise ProtocolError(f"{self} was given leaf values for trees that it has not seen.")
            values = [wire.unpack(p.values, "f4", (t.n_leaves,)) for p, t in zip(previous, run.seen, strict=True)]
            for watched in run.watched:
                watched.add(values)
            if run.fallen.maxlen:
                run.fallen.extend(
                    leaf.astype(smallest_type(t.n_leaves)) for leaf, t in zip(run.train.leaves, run.seen, strict=True)
                )
            run.seen = []
        if previous or not run.g.size:
            run.g, run.h = run.loss.gradients(run.train.margin, run.train.y, self.training_rows.weight)

    def _see(self, run: Run, structures: list[msg.TreeStructure]) -> None:
        run.seen = [wire.tree_from_message(s, self.rows.X.shape[1]) for s in structures]
        for watched in run.watched:
            watched.fall(run.seen)

    def _scores(self, run: Run, mask: msg.Masking | None) -> msg.Scores:
        plain = self._plain_scores(run)
        if self._masking(mask) is None or mask is None:
            return plain
        names = run.loss.metrics
        values = [plain.train.get(n, 0.0) for n in names] + [plain.train_weight]
        values += [plain.validation.get(n, 0.0) for n in names] + [plain.validation_weight]
        return msg.Scores(masked=self._wide(np.array(values), mask, "scores"))

    def _plain_scores(self, run: Run) -> msg.Scores:
        if run.noise:  # metrics are sums, too
            return msg.Scores()

        def sums(w: Watched | None) -> dict[str, float]:
            return run.loss.metric_sums(w.margin, w.y, w.weight) if w else {}

        return msg.Scores(
            train=sums(run.train),
            train_weight=self.training_rows.total_weight,
            validation=sums(run.validation),
            validation_weight=self.validation_rows.total_weight if self.validation_rows else 0.0,
        )

    def _sum_onto_rows(self, message: msg.SumOntoRows) -> msg.RowSums:
        run = self._running()
        self._adopt(run, message.previous)
        g: dict[str, msg.Array] = {}
        h: dict[str, msg.Array] = {}
        for builder in message.builders:
            similar = self._similar_rows(run, builder, message)
            if similar is not None:
                seed = _seed(run.seed, 5, message.round, self._order.index(self.name))
                G, H = self._sum_onto(run, similar, self._n_rows[builder], seed)
                if run.noise:
                    self._release(run, "rows", 1, run.noise.most_rows)
                    G, H = add_noise(G, run.noise.row[0]), add_noise(H, run.noise.row[1])
                ints = [
                    to_row_ints(v, exponent, bits, run.n_parties)
                    for v, exponent, bits in zip(
                        (G, H), message.exponents, (ROW_BITS, message.hessian_bits), strict=True
                    )
                ]
                masked = self._masked_rows(ints, builder, message.mask)
                g[builder], h[builder] = wire.pack(masked[0]), wire.pack(masked[1], int_type(message.hessian_bits))
        return msg.RowSums(round=message.round, gradients=g, hessians=h, scores=self._scores(run, message.mask))

    def _release(self, run: Run, kind: str, n: int, most: int) -> None:
        """Count what is sent against what the noise was made for."""
        run.released[kind] = run.released.get(kind, 0) + n
        if run.released[kind] > most:
            raise PrivacyError(
                f"{self} was asked for more sums than epsilon was counted for ({most}). It sends nothing."
            )

    def _sum_onto(self, run: Run, similar: Ints, n_rows: int, seed: int) -> tuple[Doubles, Doubles]:
        """Gradients and hessians, added onto the builder's rows in groups that are not too small."""
        least = run.params.min_group
        if least == 1 or run.near is None:
            return sum_onto_similar(similar, run.g, run.h, n_rows, seed)
        goes_to = join_small_groups(similar, draw_similar(similar, seed), run.near, n_rows, least)
        if goes_to is None:
            return np.zeros((n_rows, run.g.shape[1])), np.zeros((n_rows, run.g.shape[1]))
        return sum_onto_similar(goes_to[:, None], run.g, run.h, n_rows, seed)

    def _masked_rows(self, sums: list[Ints], builder: str, mask: msg.Masking | None) -> list[Ints]:
        """Sums onto the rows of a builder with one's own masks added (the builder's: taken away)."""
        masks = self._masking(mask)
        if masks is None or mask is None:
            return sums
        if builder not in mask.parties:
            raise PrivacyError(
                f"{self} was asked for sums that their builder {builder!r} has no part in. It sends nothing."
            )
        n = sums[0].nbytes
        drawn = masks.draw(mask.parties, mask.step, f"rows of {builder}", 2 * n)
        halves = (drawn[: len(drawn) // 2], drawn[len(drawn) // 2 :])
        return [(s.view(np.uint32) + m.reshape(s.shape)).view(np.int32) for s, m in zip(sums, halves, strict=True)]

    def _similar_rows(self, run: Run, builder: str, message: msg.SumOntoRows) -> Ints | None:
        """The builder's rows that one's own resemble: those kept, or those drawn for this tree alone."""
        drawn = message.similar.get(builder)
        if drawn is None or run.places is None:
            return run.similar.get(builder)
        similar = np.empty((len(run.places), 1), dtype=np.int32)
        column = msg.Array(drawn.dtype, (*drawn.shape, 1), drawn.data)
        similar[run.places] = self._ids(column, len(similar), self._n_rows[builder])
        return similar

    def _grow(self, message: msg.Grow) -> msg.Grown:
        run = self._running()
        self._adopt(run, message.previous)
        places = self._order_of_sums(run, message)
        g, h = run.g, run.h
        if message.gradients is not None and message.hessians is not None:
            bits = (ROW_BITS, message.hessian_bits)
            both = zip((message.gradients, message.hessians), bits, strict=True)
            sums = [wire.unpack(array, int_type(n), g.shape) for array, n in both]
            G, H = map(fold, self._masked_rows(sums, self.name, message.mask), bits)
            g = weighted(g, G, message.exponents[0], places)
            H = np.maximum(H, 0) if run.noise else H  # noise can make a hessian negative
            h = weighted(h, H, message.exponents[1], places)
        grower = self._grower(run)
        grown = [
            grower.grow(
                np.ascontiguousarray(g[:, output]),
                np.ascontiguousarray(h[:, output]),
                seed=_seed(run.seed, 6, message.round, output) >> 33,  # XGBoost takes 31 bits
            )
            for output in range(g.shape[1])
        ]
        if run.points is not None:
            grown = [cuts.on_grid(tree, run.points) for tree in grown]
        values = [wire.pack(t.value[t.leaves]) for t in grown] if run.params.leaf_values == "builder" else None
        structures = [wire.tree_to_message(t) for t in grown]
        scores = self._scores(run, message.mask) if message.with_scores else msg.Scores()
        return msg.Grown(round=message.round, trees=structures, values=values, scores=scores)

    def _order_of_sums(self, run: Run, message: msg.Grow) -> Ints | None:
        """The row that each of the sums belongs to (None: the sums stand in the order of the rows)."""
        if message.order is None or run.places is None:
            return run.places
        placed: Ints = run.places[fresh_order(message.order, len(run.places))]
        return placed

    def _grower(self, run: Run) -> trees.Grower:
        threads = trees.threads_for(self.training_rows.X, self.n_jobs)
        if run.grower is None or run.grower.threads != threads:
            run.grower = trees.Grower(self._binned(run), run.params, threads)
        return run.grower

    def _binned(self, run: Run) -> xgb.QuantileDMatrix:
        rows, max_bin = self.training_rows, run.params.max_bin or BINS
        if run.points is not None:  # not kept: another training can have another grid
            on_points = cuts.counted(rows.X, run.points)
            threads = trees.threads_for(rows.X, self.n_jobs)
            types = xgboost_types(self.schema)
            return xgb.QuantileDMatrix(on_points, weight=rows.weight, max_bin=max_bin, nthread=threads, **types)
        if max_bin not in self._bins:
            self._bins[max_bin] = xgb.QuantileDMatrix(
                rows.X,
                weight=rows.weight,
                max_bin=max_bin,
                nthread=trees.threads_for(rows.X, self.n_jobs),
                **xgboost_types(self.schema),
            )
        return self._bins[max_bin]

    def _sum_per_leaf(self, message: msg.SumPerLeaf) -> msg.LeafSums:
        run = self._running()
        self._see(run, message.trees)
        g: list[Longs] = []
        h: list[Longs] = []
        if run.noise:
            self._release(run, "leaves", len(run.seen) // run.g.shape[1], run.noise.most_leaves)
        for number, (leaf, tree) in enumerate(zip(run.train.leaves, run.seen, strict=True)):
            G, H = sum_per_leaf(leaf, run.g, run.h, number % run.g.shape[1], tree.n_leaves)
            if run.noise:
                G, H = add_noise(G, run.noise.leaf[0]), add_noise(H, run.noise.leaf[1])
            g.append(to_leaf_ints(G, message.exponents[0], run.n_parties))
            h.append(to_leaf_ints(H, message.exponents[1], run.n_parties))
        g, h = self._masked_leaves(g, h, message.mask)
        return msg.LeafSums(
            round=message.round, gradients=[wire.pack(v) for v in g], hessians=[wire.pack(v) for v in h]
        )

    def _masked_leaves(
        self, g: list[Longs], h: list[Longs], mask: msg.Masking | None
    ) -> tuple[list[Longs], list[Longs]]:
        masks = self._masking(mask)
        if masks is None or mask is None:
            return g, h
        sums = np.concatenate([*g, *h]).view(np.uint64)
        hidden = (sums + masks.draw_long(mask.parties, mask.step, "leaves", len(sums))).view(np.int64)
        parts = np.split(hidden, np.cumsum([len(v) for v in (*g, *h)])[:-1])
        return parts[: len(g)], parts[len(g) :]

    def _finish(self, message: msg.Finish) -> msg.Finished:
        run = self._running()
        self._adopt(run, message.previous)
        scores = self._scores(run, message.mask)
        self._run = None
        return msg.Finished(scores=scores)

    _answers: ClassVar[dict[type, Callable[..., Any]]] = {
        msg.Describe: _describe,
        msg.Settle: _settle,
        msg.Introduce: _introduce,
        msg.Meet: _meet,
        msg.Measure: _measure,
        msg.Hash: _hash,
        msg.Match: _match,
        msg.TakeSimilar: _take_similar,
        msg.Recall: _recall,
        msg.DescribeLabels: _describe_labels,
        msg.SumLabels: _sum_labels,
        msg.Start: _start,
        msg.Replay: _replay,
        msg.HashByTrees: _hash_by_trees,
        msg.SumOntoRows: _sum_onto_rows,
        msg.Grow: _grow,
        msg.SumPerLeaf: _sum_per_leaf,
        msg.Finish: _finish,
    }


def _seed(*parts: int) -> int:
    """One seed of 64 bits from several numbers."""
    return int.from_bytes(hashlib.blake2b(struct.pack(f"<{len(parts)}Q", *parts), digest_size=8).digest(), "little")
