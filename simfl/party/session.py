"""A party's part in one run: the door between its rows and the hub.

`Session.handle` takes a message of `messages.py` and returns one; nothing else leaves. What may be asked when is in one
table, `ACCEPTS`: everything else is refused in one place.
"""

import secrets
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Any, ClassVar, Final

import numpy as np
from scipy import sparse

from simfl import messages as msg
from simfl.arrays import AnyArray
from simfl.data.schema import Schema
from simfl.data.table import as_numbers, class_numbers, plain_classes
from simfl.errors import DataError, ProtocolError
from simfl.params import cores
from simfl.party import similar
from simfl.party.party import Party, Split
from simfl.party.sealing import Sealing
from simfl.party.similar import Hashing, Searcher, SimilarRows
from simfl.party.terms import Rules, Terms
from simfl.party.training import Bins, PartyTraining
from simfl.preprocessing.scaling import moments
from simfl.preprocessing.tables import HashValues
from simfl.privacy.keys import Identity, Keys, sign, verify
from simfl.privacy.masks import Masks
from simfl.privacy.tokens import SECRET_BYTES, derive
from simfl.training.losses import LOSSES


class Phase(Enum):
    """Where a session stands, in words for a refusal."""

    NEW = "before the handshake"
    READY = "before a training began"
    EXCHANGING = "while keys were being exchanged"
    SEARCHING = "while similar rows were being searched"
    TRAINING = "during a training"
    REMATCHING = "while similar rows were being searched during a training"


# From each phase: what is accepted, and the phase that it leads to. What belongs before a training is accepted at any
# time after the handshake, and ends whatever was under way: the hub has lost a party and starts again with the others.
_BEFORE: Final[dict[type, Phase]] = {
    msg.Describe: Phase.READY,
    msg.Settle: Phase.READY,
    msg.DrawKey: Phase.EXCHANGING,
    msg.SumFeatures: Phase.READY,
    msg.Hash: Phase.SEARCHING,
    msg.Recall: Phase.READY,
    msg.DescribeLabels: Phase.READY,
    msg.SumLabels: Phase.READY,
    msg.Start: Phase.TRAINING,
}
ACCEPTS: Final[dict[Phase, dict[type, Phase]]] = {
    Phase.NEW: {msg.Describe: Phase.READY},
    Phase.READY: _BEFORE,
    Phase.EXCHANGING: {**_BEFORE, msg.TakeKeys: Phase.READY},
    Phase.SEARCHING: {**_BEFORE, msg.Match: Phase.READY, msg.TakeSimilar: Phase.READY},
    Phase.TRAINING: {
        **_BEFORE,
        msg.Replay: Phase.TRAINING,
        msg.Recall: Phase.TRAINING,
        msg.HashByTrees: Phase.REMATCHING,
        msg.SumOntoRows: Phase.TRAINING,
        msg.Grow: Phase.TRAINING,
        msg.SumPerLeaf: Phase.TRAINING,
        msg.Finish: Phase.READY,
    },
    Phase.REMATCHING: {**_BEFORE, msg.Match: Phase.TRAINING, msg.TakeSimilar: Phase.TRAINING},
}


class Session:
    """One party in one run.

    `secret`: what the party shares with the other parties and the hub does not know. `identity`: its certificate.
    `must_mask`: refuse to send sums that are not masked. `folder`: where similar rows are kept, for a resume. `terms`:
    the study that this party approved, to which it holds the hub; `run`: the name of the training.
    """

    def __init__(
        self,
        party: Party,
        *,
        secret: bytes | None = None,
        identity: Identity | None = None,
        must_mask: bool = False,
        folder: Path | None = None,
        terms: Terms | None = None,
        run: str = "",
    ) -> None:
        self.party, self.name, self.run = party, party.name, run
        self.secret, self.identity, self.folder = secret, identity, folder
        self.rules = Rules(party.name, terms) if terms else None
        self._brought_secret = secret is not None
        self.n_jobs = cores()
        self.progress: Callable[[int, int], None] | None = None  # called in a long search: rows done, rows in all
        self.phase = Phase.NEW
        self.split = Split.of(party, 0.0, 0)
        must_mask |= terms is not None and terms.masked
        self.sealing = Sealing(str(party), must_mask, one_budget=terms is not None)
        self.similar = SimilarRows([party.name])  # of stage 1
        self._keys: Keys | None = None
        self._hashing: Hashing | None = None
        self._bins: Bins = {}
        self._training: PartyTraining | None = None

    def __repr__(self) -> str:
        return f"Session({self.party!r}, {self.phase.name})"

    def handle(self, message: msg.Request) -> msg.Reply:
        """Answer a message of the hub, if it is accepted now."""
        after = ACCEPTS[self.phase].get(type(message))
        if after is None:
            raise ProtocolError(f"{self.party} was asked for {type(message).__name__} {self.phase.value}.")
        reply = self.rules.check(message, self.split.n_features) if self.rules else None
        if reply is None:
            reply = self._answers[type(message)](self, message)
            if self.rules:
                self.rules.answered(message, reply)
        self.phase = after
        if after not in (Phase.TRAINING, Phase.REMATCHING):
            self._training = None
        return reply

    # --- handshake ---------------------------------------------------------------------------------------------------

    def _describe(self, message: msg.Describe) -> msg.Description:
        if message.version != msg.VERSION:
            raise ProtocolError(
                f"{self.party} speaks version {msg.VERSION} of the protocol, the hub {message.version}. "
                "Install the same version of simfl everywhere."
            )
        self._divide(Split.of(self.party, message.validation_fraction, message.seed))
        aside, schema = self.split.validation, self.split.schema
        return msg.Description(
            n_rows=len(self.split.training.y),
            n_validation_rows=len(aside.y) if aside else 0,
            n_features=self.split.n_features,
            columns=list(schema.columns) if schema else None,
            is_sparse=sparse.issparse(self.split.training.X),
            secret=self.secret and derive(self.secret, "digest")[:8],
        )

    def _divide(self, split: Split) -> None:
        self.split, self._bins = split, {}

    def _settle(self, message: msg.Settle) -> msg.Done:
        self._divide(self.split.settled(Schema(tuple(message.columns))))
        return msg.Done()

    def _draw_key(self, message: msg.DrawKey) -> msg.PublicKey:
        self._keys = Keys(self.name)
        signed = sign(self.identity, self.name, self._keys.public, self.run) if self.identity else (None, None)
        return msg.PublicKey(public=msg.SignedKey(key=self._keys.public, signature=signed[0], certificate=signed[1]))

    def _take_keys(self, message: msg.TakeKeys) -> msg.SealedSecret:
        keys = self._keys
        if keys is None or self.name not in message.keys or message.keys[self.name].key != keys.public:
            raise ProtocolError(f"{self.party} was presented to the others under a key that it did not draw.")
        if self.identity:
            for name, signed in message.keys.items():
                verify(self.identity, name, signed, self.run)
        keys.exchange({name: signed.key for name, signed in message.keys.items()})
        self.sealing.masks = Masks(keys)
        if self._brought_secret:  # it is in the files of the parties that may have it, and is never sent to anybody
            return msg.SealedSecret(sealed={})
        if message.first == self.name:
            self.secret = self.secret or secrets.token_bytes(SECRET_BYTES)
            return msg.SealedSecret(sealed={other: keys.seal(other, self.secret) for other in keys.pairs})
        if message.sealed is None:
            raise ProtocolError(
                f"{self.party} got no secret and has none. Give the same one to all parties, or to none."
            )
        self.secret = keys.open(message.first, message.sealed)
        return msg.SealedSecret(sealed={})

    # --- stage 1 -----------------------------------------------------------------------------------------------------

    def _sum_features(self, message: msg.SumFeatures) -> msg.FeatureSums:
        found = moments(self.split.expansion.expand(self.split.training.X))
        several = found.counts > 1  # the sum of one value would be that value: the others' scale will do
        sums = np.concatenate([part * several for part in (found.counts, found.sums, found.squares)])
        return msg.FeatureSums(sums=self.sealing.small(sums.tolist(), message.mask, "features"))

    def _hash(self, message: msg.Hash) -> msg.Hashes | msg.HiddenRows:
        values = similar.hash_values(self.split, message, self.secret)
        if message.seed is None:
            return self._hide(values, 0)
        if self.rules:
            self.rules.check_spread(float(np.median(values.above.std(axis=0))) * message.bucket_width, message)
        self._hashing, reply = similar.show(values, 0)
        return reply

    def _hide(self, values: HashValues, number: int) -> msg.HiddenRows:
        if path := self._kept(number):  # ids of an earlier search are places in other orders: they must not be mixed
            path.unlink(missing_ok=True)
        self._hashing, reply = similar.hide(values, number, self.name, self.secret)
        return reply

    def _match(self, message: msg.Match) -> msg.Matched:
        searcher = Searcher(self.n_jobs, self.progress)
        found, reply = similar.search(self._awaited(), message, self.name, searcher)
        self._take(found, message.round)
        return reply

    def _take_similar(self, message: msg.TakeSimilar) -> msg.Done:
        self._take(similar.take(self._awaited(), message, self.name), message.round)
        return msg.Done()

    def _awaited(self) -> Hashing:
        if self._hashing is None:
            raise ProtocolError(f"{self.party} was asked to match its rows before it had hashed them.")
        return self._hashing

    def _take(self, found: SimilarRows, number: int) -> None:
        """Use the similar rows: in stage 1 for all trainings, in a rematch for the rest of this one."""
        self._hashing = None
        self._use(found)
        if path := self._kept(number):
            similar.keep(path, found, self.split, self.secret)

    def _use(self, found: SimilarRows) -> None:
        if self._training is not None:
            self._training.similar = found
        else:
            self.similar = found

    def _recall(self, message: msg.Recall) -> msg.Recalled:
        path = self._kept(message.round)
        if path is None or not path.exists():
            return msg.Recalled(found=False)
        found, secret = similar.read_kept(path, self.split)
        self._use(found)
        if self._training is None:
            self.secret = secret or self.secret
        return msg.Recalled(found=True)

    def _kept(self, number: int) -> Path | None:
        """Where the similar rows of a round are kept, if this party keeps them."""
        return self.folder and self.folder / f"similar-{number}.npz"

    def keep(self, path: Path) -> None:
        """Write what stage 1 found."""
        similar.keep(path, self.similar, self.split, self.secret)

    def recall(self, path: Path, question: msg.Describe, agreed: Schema | None) -> None:
        """Take up what `keep` wrote, without a hub: the same rows are set aside, in the columns agreed on then."""
        self.handle(question)
        own = self.split.schema
        if agreed and own and sorted(own.names) == sorted(agreed.names):
            self._divide(self.split.settled(agreed))
        self.similar, secret = similar.read_kept(path, self.split)
        self.secret = secret or self.secret

    # --- labels ------------------------------------------------------------------------------------------------------

    def _describe_labels(self, message: msg.DescribeLabels) -> msg.Classes:
        if LOSSES[message.objective].classifies:
            return msg.Classes(classes=self._classes())
        as_numbers(self.split.training.y, str(self.party))  # refuses labels that are not numbers before the long search
        return msg.Classes(classes=None)

    def _classes(self) -> list[Any]:
        rows, aside = self.split.training, self.split.validation
        classes = plain_classes(rows.y if aside is None else np.concatenate([rows.y, aside.y]))
        if len(classes) > msg.MOST_CLASSES or any(isinstance(c, float) for c in classes):
            raise DataError(
                f"{self.party} has labels that look like numbers, not classes ({classes[:3]}). "
                "Use objective='reg:squarederror'."
            )
        return classes

    def _sum_labels(self, message: msg.SumLabels) -> msg.LabelSums:
        rows = self.split.training
        values = np.append(self._label_sums(message.classes), rows.total_weight)
        return msg.LabelSums(sums=self.sealing.small(values.tolist(), message.mask, "labels"))

    def _label_sums(self, classes: list[Any] | None) -> AnyArray:
        """The weight of each class, or the sum of all labels."""
        rows = self.split.training
        if classes is not None:
            numbers = class_numbers(rows.y, classes, str(self.party)).astype(np.int64)
            return np.bincount(numbers, weights=rows.weight, minlength=len(classes))
        values = as_numbers(rows.y, str(self.party))
        return np.array([values.sum() if rows.weight is None else values @ rows.weight.astype(np.float64)])

    # --- stage 2 -----------------------------------------------------------------------------------------------------

    def _start(self, message: msg.Start) -> msg.Started:
        training = PartyTraining(message, self.name, self.split, self.similar, self._bins)
        reply = training.begin(message, self.sealing)
        self._training = training
        return reply

    @property
    def training(self) -> PartyTraining:
        """The training under way."""
        if self._training is None:
            raise ProtocolError(f"{self.party} was asked to train before a training began.")
        return self._training

    def _replay(self, message: msg.Replay) -> msg.Done:
        for trees in message.rounds:
            self.training.adopt(trees)
        return msg.Done()

    def _hash_by_trees(self, message: msg.HashByTrees) -> msg.Hashes | msg.HiddenRows:
        self.training.adopt(message.previous)
        values = self.training.leaves_as_hashes(message.n_hashes)
        if message.blind:
            return self._hide(values, message.round)
        self._hashing, reply = similar.show(values, message.round)
        return reply

    def _sum_onto_rows(self, message: msg.SumOntoRows) -> msg.RowSums:
        return self.training.sum_onto_rows(message, self.sealing)

    def _grow(self, message: msg.Grow) -> msg.Grown:
        return self.training.grow(message, self.sealing, self.n_jobs)

    def _sum_per_leaf(self, message: msg.SumPerLeaf) -> msg.LeafSums:
        return self.training.sum_per_leaf(message, self.sealing)

    def _finish(self, message: msg.Finish) -> msg.Finished:
        self.training.adopt(message.previous)
        return msg.Finished(scores=self.training.scores(message.mask, self.sealing))

    _answers: ClassVar[dict[type, Callable[..., Any]]] = {
        msg.Describe: _describe,
        msg.Settle: _settle,
        msg.DrawKey: _draw_key,
        msg.TakeKeys: _take_keys,
        msg.SumFeatures: _sum_features,
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
