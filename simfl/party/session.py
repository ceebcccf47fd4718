"""A party's part in one run: the door between its rows and the hub.

`Session.handle` takes a message of `messages.py` and returns one; nothing else leaves. What may be asked when is in one
table (`phases.py`): everything else is refused in one place.
"""

import secrets
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from scipy import sparse

from simfl import messages as msg
from simfl.data.schema import Schema
from simfl.data.table import as_targets, plain_classes, refuse_bounds
from simfl.errors import DataError, PrivacyError, ProtocolError, SimFLError
from simfl.joint.machine import Machine
from simfl.joint.private import PrivateMachine
from simfl.joint.shared import Shared
from simfl.model import Model
from simfl.model.compare import Adopted
from simfl.params import cores, is_private
from simfl.party import joint_terms, private_rows, similar
from simfl.party.joint import GrowingTogether, Membership
from simfl.party.joint_rows import machine_of, model_of, private_machine_of
from simfl.party.kept_keys import keep_noise_key, read_keys, write_keys
from simfl.party.party import Party, Split
from simfl.party.phases import ACCEPTS, Phase
from simfl.party.sealing import Noise, Sealing
from simfl.party.signing import Signing
from simfl.party.similar import Hashing, Searcher, SimilarRows
from simfl.party.terms import Rules, Terms
from simfl.party.training import Kept, PartyTraining
from simfl.preprocessing.scaling import Moments, common_scale, moments
from simfl.preprocessing.tables import HashValues
from simfl.privacy.additive import Covers, digest_of_keys
from simfl.privacy.keys import Identity, Keys, sign_key, verify_key
from simfl.privacy.ledger import event_of
from simfl.privacy.masks import Masks, told
from simfl.privacy.tokens import SECRET_BYTES, derive
from simfl.storage import require_private_file
from simfl.training.losses import loss_named


class Session:
    """One party in one run.

    `secret`: what the party shares with the other parties and the hub does not know. `identity`: its certificate.
    `folder`: where similar rows are kept, for a resume. `terms`: the study that this party approved, to which it holds
    the hub; `run`: the name of the training.
    """

    def __init__(
        self,
        party: Party,
        *,
        secret: bytes | None = None,
        identity: Identity | None = None,
        folder: Path | None = None,
        terms: Terms | None = None,
        run: str = "",
    ) -> None:
        self.party, self.name, self.run = party, party.name, run
        self.secret, self.identity, self.folder = secret, identity, folder
        self.rules = Rules(party.name, terms, party.rows.X.shape[1]) if terms else None
        self._brought_secret = secret is not None
        self.n_jobs = cores()
        self.progress: Callable[[int, int], None] | None = None  # called in a long search: rows done, rows in all
        self.shared: Shared | None = None  # with other parties of this process, for trees grown together
        self.phase = Phase.NEW
        self.split = Split.of(party, 0.0, 0)
        self.sealing = Sealing(str(party), must_mask=bool(terms and terms.masked), one_budget=terms is not None)
        self.similar = SimilarRows([party.name])  # of stage 1
        self._keys: Keys | None = None
        self._hashing: Hashing | None = None
        self._of_rows = Kept()
        self._training: PartyTraining | None = None
        self._together: GrowingTogether | None = None
        self._covers: Covers | None = None  # of the last exchange of keys
        self._exchange = b""
        self._giver: str | None = None  # of the secret, where another party drew it
        self.private = secrets.token_bytes(SECRET_BYTES)  # behind this party's noise; nobody else has it
        self.noise_key = secrets.token_bytes(SECRET_BYTES)  # the same with epsilon: never from a seed
        self._recall_keys()
        self.adopted: Adopted | None = None  # what this party knows of the model, once the training has ended

    def __repr__(self) -> str:
        return f"Session({self.party!r}, {self.phase.name})"

    def handle(self, message: msg.Request) -> msg.Reply:
        """Answer a message of the hub, if it is accepted now."""
        after = ACCEPTS[self.phase].get(type(message))
        if after is None:
            raise ProtocolError(f"{self.party} was asked for {type(message).__name__} {self.phase.value}.")
        reply = (
            self._answers[type(message)](self, message) if self.rules is None else self._by_rules(message, self.rules)
        )
        self.phase = after
        if after not in (Phase.TRAINING, Phase.REMATCHING):
            self._training = None
        if after is not Phase.TOGETHER:
            self._together = None
        return reply

    def _by_rules(self, message: msg.Request, rules: Rules) -> msg.Reply:
        """Answer if the rules allow it. What is refused before it has moved the model counts as not asked."""
        before, training, n_rounds = rules.copy(), self._training, self._training.n_rounds if self._training else 0
        try:
            reply = rules.check(message)
            if reply is None:
                reply = self._answers[type(message)](self, message)
                rules.answered(message, reply)
        except SimFLError:
            if training is None or training.n_rounds == n_rounds:
                self.rules = before
            raise
        return reply

    # --- handshake ---------------------------------------------------------------------------------------------------

    def _describe(self, message: msg.Describe) -> msg.Description:
        if message.version != msg.VERSION:
            raise ProtocolError(
                f"{self.party} speaks version {msg.VERSION} of the protocol, the hub {message.version}. "
                "Install the same version of simfl everywhere."
            )
        if message.private:
            private_rows.check_declared(self.party)
        self._divide(Split.of(self.party, message.validation_fraction, message.seed))
        aside, schema = self.split.validation, self.split.schema
        self.shown[f"columns {self.split.n_features}"] += 1
        return msg.Description(
            n_rows=0 if message.private else len(self.split.training.y),
            n_validation_rows=len(aside.y) if aside and not message.private else 0,
            n_features=self.split.n_features,
            columns=list(schema.columns) if schema else None,
            is_sparse=sparse.issparse(self.split.training.X),
            secret=self.secret and derive(self.secret, "digest")[:8],
        )

    def _divide(self, split: Split) -> None:
        self.split, self._of_rows = split, Kept()

    def _settle(self, message: msg.Settle) -> msg.Done:
        self._divide(self.split.settled(Schema(tuple(message.columns))))
        return msg.Done()

    def _draw_key(self, message: msg.DrawKey) -> msg.PublicKey:
        self._keys = Keys(self.name)
        own = self._keys.public
        signed = sign_key(self.identity, self.name, own, self.run) if self.identity else msg.SignedKey(key=own)
        return msg.PublicKey(public=signed, has_secret=self.secret is not None)

    def _take_keys(self, message: msg.TakeKeys) -> msg.SealedSecret:
        keys = self._keys
        if keys is None or self.name not in message.keys or message.keys[self.name].key != keys.public:
            raise ProtocolError(f"{self.party} was presented to the others under a key that it did not draw.")
        if self.identity:
            for name, signed in message.keys.items():
                verify_key(self.identity, name, signed, self.run)
        publics = {name: signed.key for name, signed in message.keys.items()}
        keys.exchange(publics)
        reply = self._agree_on_secret(message, keys)  # before anything is replaced: refused keys are not used
        self.sealing.masks, self._covers, self._exchange = Masks(keys), None, digest_of_keys(publics)
        return reply

    def _agree_on_secret(self, message: msg.TakeKeys, keys: Keys) -> msg.SealedSecret:
        if self._brought_secret:  # it is in the files of the parties that may have it, and is never sent to anybody
            return msg.SealedSecret(sealed={})
        if message.first == self.name:
            self.secret, self._giver = self.secret or secrets.token_bytes(SECRET_BYTES), None
            return msg.SealedSecret(sealed={other: keys.seal(other, self.secret) for other in keys.pairs})
        if message.sealed is None:
            raise ProtocolError(
                f"{self.party} got no secret and has none. Give the same one to all parties, or to none."
            )
        self.secret = _of_right_size(keys.open(message.first, message.sealed), message.first, self.name)
        self._giver = message.first
        return msg.SealedSecret(sealed={})

    # --- stage 1 -----------------------------------------------------------------------------------------------------

    def _moments(self) -> Moments:
        return moments(self.split.expansion.expand(self.split.training.X))

    def _sum_features(self, message: msg.SumFeatures) -> msg.FeatureSums:
        found = self._moments()
        several = found.counts > 1  # the sum of one value would be that value: the others' scale will do
        sums = np.concatenate([part * several for part in (found.counts, found.sums, found.squares)])
        said = told(self.split.schema)
        return msg.FeatureSums(sums=self.sealing.small(sums.tolist(), message.mask, "features", said))

    def _hash(self, message: msg.Hash) -> msg.Hashes | msg.HiddenRows:
        if self.rules:
            groups = self.split.expansion.groups
            own = common_scale(self._moments(), len(self.split.training.y), groups)
            self.rules.check_scale(message, own, groups)
        values = similar.hash_values(self.split, message, self.secret)
        if message.seed is None:
            return self._hide(values, 0)
        if self.rules:
            self.rules.check_spread(float(np.median(values.above.std(axis=0))) * message.bucket_width, message)
        return self._show(values, 0)

    def _show(self, values: HashValues, number: int) -> msg.Hashes:
        self._hashing, reply = similar.show(values, number)
        self.shown.update(["hash values", f"hashes {len(values.lowest)}"])
        return reply

    def _hide(self, values: HashValues, number: int) -> msg.HiddenRows:
        if path := self._kept(number):  # ids of an earlier search are places in other orders: they must not be mixed
            path.unlink(missing_ok=True)
        self._hashing, reply = similar.hide(values, number, self.name, self.secret)
        self.shown.update(["names", f"hashes {len(values.lowest)}"])
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
        if found.rows:
            self.shown["ids of rows"] += 1
        if self._training is not None:
            self._training.similar = found
        else:
            self.similar = found
            if self.rules:
                self.rules.n_rows |= found.n_rows | {self.name: len(self.split.training.y)}

    def _recall(self, message: msg.Recall) -> msg.Recalled:
        path = self._kept(message.round)
        if path is None or not path.exists():
            return msg.Recalled(found=False)
        require_private_file(path)  # it holds the parties' secret
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
        loss = loss_named(message.objective)
        if loss.classifies:
            return msg.Classes(classes=self._classes())
        for rows in (self.split.training, self.split.validation):  # refuses wrong labels before the long search
            if rows is not None:
                as_targets(rows.y, loss, None, str(self.party))
        return msg.Classes(classes=None)

    def _classes(self) -> list[Any]:
        rows, aside = self.split.training, self.split.validation
        refuse_bounds(rows.y, str(self.party))
        classes = plain_classes(rows.y if aside is None else np.concatenate([rows.y, aside.y]))
        if len(classes) > msg.MOST_CLASSES or any(isinstance(c, float) for c in classes):
            raise DataError(
                f"{self.party} has labels that look like numbers, not classes ({classes[:3]}). "
                "Use objective='reg:squarederror'."
            )
        return classes

    def _sum_labels(self, message: msg.SumLabels) -> msg.LabelSums:
        rows, classes, loss = self.split.training, message.classes, loss_named(message.objective, message.settings)
        y = as_targets(rows.y, loss, classes, str(self.party))
        values = [*loss.label_sums(y, rows.weight, len(classes or ())), rows.total_weight]
        said = told(message.objective, message.settings, classes)
        return msg.LabelSums(sums=self.sealing.small(values, message.mask, "labels", said))

    # --- stage 2 -----------------------------------------------------------------------------------------------------

    def _start(self, message: msg.Start) -> msg.Started:
        signing = Signing(self.identity, self.name, self.run) if self.identity else None
        training = PartyTraining(message, self.name, self.split, self.similar, self._of_rows, signing)
        reply = training.begin(message, self.sealing)
        self._training, self.adopted = training, None
        return reply

    @property
    def shown(self) -> Counter[str]:
        """What this party really did to what it sent: see `privacy/observed.py`."""
        return self.sealing.shown

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
        return self._show(values, message.round)

    def _sum_onto_rows(self, message: msg.SumOntoRows) -> msg.RowSums:
        return self.training.sum_onto_rows(message, self.sealing)

    def _grow(self, message: msg.Grow) -> msg.Grown:
        return self.training.grow(message, self.sealing, self.n_jobs)

    def _sum_per_leaf(self, message: msg.SumPerLeaf) -> msg.LeafSums:
        return self.training.sum_per_leaf(message, self.sealing)

    def _finish(self, message: msg.Finish) -> msg.Finished:
        self.sealing.check(message.mask)
        self.training.adopt(message.previous)
        scores = self.training.scores(message.mask, self.sealing)
        self.adopted = self.training.adopted
        return msg.Finished(scores=scores, shown=dict(self.shown))

    # --- trees grown together ----------------------------------------------------------------------------------------

    def _start_together(self, message: msg.StartTogether) -> msg.Done:
        if message.masked and (self.sealing.masks is None or self.secret is None):
            raise ProtocolError(f"{self.party} was asked for masked sums before keys were exchanged.")
        if self.name not in message.parties:
            raise ProtocolError(f"{self.party} was asked to grow trees among parties that it is none of.")
        secret = bytes(SECRET_BYTES) if self.secret is None else self.secret
        if message.masked and self._covers is None:
            self._covers = Covers(secret, self._exchange)
        covers = self._covers if message.masked else None
        member = Membership(self.name, self.run, secret, self.identity, covers)
        machine = self._machine(message)
        try:
            together = GrowingTogether(message, member, self.sealing, machine)
        except PrivacyError as error:
            if (known := self._because_of_the_secret()) is not None:
                raise known from error
            raise
        if self.rules:
            joint_terms.resumed(self.rules, machine.kept)
        self._keep_keys()
        self._together = together
        return msg.Done()

    def _because_of_the_secret(self) -> PrivacyError | None:
        """What was decided cannot be opened: if that is for another secret than the kept one, who gave it is named.

        One that opens it may differ from the kept one, which can be of an exchange of keys that came to nothing.
        """
        kept, giver = read_keys(self.folder) if self.folder is not None else None, self._giver
        if kept is None or kept[0] is None or giver is None or kept[0] == self.secret:
            return None
        self.secret, self._covers = kept[0], None
        return PrivacyError(
            f"{self.party} got another secret from {giver!r} than it has kept of this run, and what was decided before "
            f"cannot be opened with it. The kept one stays. Resume without {giver!r}, or ask it which run it resumes."
        )

    def _machine(self, message: msg.StartTogether) -> Machine | PrivateMachine:
        """What this party computes. With epsilon, the run is charged and its noise is ready before anything is."""
        params, sealing = message.params, self.sealing
        if not is_private(params):
            sealing.begin(None)
            return machine_of(message, self.split, self.private, self.n_jobs, self.shared)
        private_rows.check_declared(self.party)
        private_rows.check_hidden(message, str(self.party))
        own = private_rows.limited(self.split, params)
        machine = private_machine_of(message, params, own, self.n_jobs, self.shared)
        event = event_of(params)
        if event and sealing.account:
            sealing.account.charge(event)
        sealing.begin(Noise(self._kept_noise_key(), params.epsilon, machine.n_batches))
        return machine

    def _kept_noise_key(self) -> bytes:
        """Drawn once in a run: a resumed one has the same noise."""
        if self.folder is not None:
            self.noise_key = keep_noise_key(self.folder, self.noise_key)
        return self.noise_key

    @property
    def together(self) -> GrowingTogether:
        """The trees that are being grown together."""
        if self._together is None:
            raise ProtocolError(f"{self.party} was asked to grow trees before a training began.")
        if isinstance(self._together.machine, Machine):
            self._together.machine.use(self.n_jobs)
        return self._together

    def _add(self, message: msg.Add) -> msg.Reply:
        return self.together.add(message)

    def _send_model(self, message: msg.SendModel) -> msg.SealedModel:
        if self.rules:
            joint_terms.finished(self.rules, is_finished=self.together.machine.finished)
        return self.together.send_model(message, bytes(self.model.booster.save_raw("ubj")))

    @property
    def model(self) -> Model:
        """Of the trees that were grown together so far."""
        return model_of(self.together.machine, self.together.start, self.split)

    def _keep_keys(self) -> None:
        """A resumed training needs the parties' secret, to read what was kept, and the same noise.

        Only after this secret has opened what was decided before: a wrong one would replace the right one for ever.
        """
        if self.folder is not None:
            write_keys(self.folder, self.secret, self.private)

    def _recall_keys(self) -> None:
        kept = read_keys(self.folder) if self.folder is not None else None
        if kept is not None:
            self.secret, self.private = self.secret or kept[0], kept[1]

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
        msg.StartTogether: _start_together,
        msg.Add: _add,
        msg.SendModel: _send_model,
    }


def _of_right_size(secret: bytes, giver: str, receiver: str) -> bytes:
    """The secret that a party gave to another, if it is one."""
    if len(secret) != SECRET_BYTES:
        raise ProtocolError(
            f"Party {giver!r} sealed a secret of {len(secret)} bytes for {receiver!r}, where {SECRET_BYTES} belong. "
            f"It is not used. Install the same version of simfl everywhere, or resume without {giver!r}."
        )
    return secret
