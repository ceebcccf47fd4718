"""Parties and transports for the tests that look at messages, or change them on their way.

Tests open, drive and look into parties only through this module: what a party is made of is known here alone.
"""

import json
from collections import defaultdict

import msgspec
import numpy as np

import simfl
from simfl import hub, wire
from simfl import messages as msg
from simfl import model as models
from simfl.errors import PartyLost
from simfl.hub.journal import open_journal
from simfl.params import RECIPES, train_params
from simfl.party import Session
from simfl.privacy import boxes
from simfl.privacy.tokens import secret_of
from simfl.privacy.words import FORMS, from_bytes
from simfl.privacy.words import split as split_words
from simfl.transport.local import LocalTransport


def rows(n, seed, d=6):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d)).astype(np.float32)
    return X, (X[:, 0] + X[:, 1] * X[:, 2] + 0.5 * rng.normal(size=n) > 0).astype(int)


def parties(*sizes, **more):
    return [simfl.Party(f"p{i}", *rows(n, i), **more) for i, n in enumerate(sizes)]


# --- parties that answer ---------------------------------------------------------------------------------------------


def sessions(members, secret=None, identity=None, folder=None):
    """What answers for each party in one run, from the start. `secret`: the seed of what the parties share."""
    if folder:
        for member in members:
            (folder / member.name).mkdir(exist_ok=True)
    return [
        Session(
            member,
            secret=None if secret is None else secret_of(secret),
            identity=identity and identity(member.name),
            folder=folder and folder / member.name,
        )
        for member in members
    ]


def row_sums(array, question):
    """The gradients and hessians in words that were sent without masks."""
    form = FORMS[question.word_bytes]
    words = from_bytes(wire.bytes_of(array, f"u{form.n_bytes}", array.shape), form.n_bytes)
    return [
        np.ldexp(part.reshape(array.shape).astype(float), exponent)
        for part, exponent in zip(split_words(words, form), question.exponents, strict=True)
    ]


def similar_rows(session):
    """Per other party: the ids of the rows that each row of this party resembles. Kept for all trainings."""
    return {other: ids.unpacked() for other, ids in session.similar.rows.items()}


def places(session):
    """Blind matching: the row at each place of the order that the others know. None: the order of the rows."""
    return session.similar.places


def under_training(session):
    """The state of the training under way (`similar`, `train.margin`). None before and after."""
    return session._training


# --- transports ------------------------------------------------------------------------------------------------------


class Recorder(LocalTransport):
    """Keeps every message, both ways, as the hub sees it."""

    def __init__(self, handlers, n_jobs=1):
        super().__init__(handlers, n_jobs, observe=lambda *seen: self.log.append(seen))
        self.log = []  # party, question, reply

    def questions(self, kind):
        return [message for _, message, _ in self.log if isinstance(message, kind)]

    def replies(self, kind):
        """The last reply of this kind, by party."""
        return {party: reply for party, _, reply in self.log if isinstance(reply, kind)}

    @property
    def bytes(self):
        return b"".join(wire.encode(m) for _, *both in self.log for m in both)


def recorded(members, n_jobs=1, **given):
    """A recorder before new sessions of these parties."""
    return Recorder(sessions(members, **given), n_jobs)


class Between:
    """Stands before a party: may change what is asked and what is replied, or raise instead."""

    def __init__(self, session, question=lambda message: message, reply=lambda message: message):
        self.name, self.n_jobs = session.name, 1
        self.session, self.question, self.reply = session, question, reply

    def handle(self, message):
        self.session.n_jobs = self.n_jobs
        return self.reply(self.session.handle(self.question(message)))


def lose(session, after):
    """A party that stops answering after some steps."""
    left = iter(range(after))

    def question(message):
        if isinstance(message, msg.Add) and next(left, None) is None:
            raise PartyLost([session.name], "it is gone")
        return message

    return Between(session, question)


class Playback:
    """Answers for a party with the replies of an earlier run, in their order: shows the hub alone."""

    def __init__(self, name, replies):
        self.name, self.n_jobs, self.left = name, 1, iter(replies)

    def handle(self, message):
        return next(self.left)


def by_party(log):
    """Questions and replies per party, in their order."""
    found = defaultdict(list)
    for party, *both in log:
        found[party].append(both)
    return found


# --- parameters ------------------------------------------------------------------------------------------------------


def settled(**given):
    """The parameters of a training: also those that only a recipe or a training sets; what it does not read goes."""
    struct = RECIPES[given.get("recipe", "similar")]
    by_recipe = {name: given.pop(name) for name in ("leaf_values", "extra_depth") if name in given}
    read = {name: v for name, v in given.items() if name != "rematch" or name in struct.__struct_fields__}
    return msgspec.structs.replace(train_params(**read), **by_recipe)


# --- runs and their results ------------------------------------------------------------------------------------------


def train(transport, journal=None, callbacks=(), min_parties=None, **params):
    """Both stages, as the hub runs them."""
    checked = settled(**params)
    prepared = hub.prepare(transport, checked)
    recovery = hub.Recovery(journal or open_journal(), min_parties)
    return hub.train(transport, prepared, checked, callbacks=callbacks, recovery=recovery)


def bits(training):
    """All of a training's model, to the last bit."""
    trees = [tree for trees in training.rounds for tree in trees]
    arrays = [(t.feature, t.threshold, t.default_left, t.value[t.leaves], t.level_set, t.goes_right) for t in trees]
    return [a if a is None else a.tobytes() for parts in arrays for a in parts], training.labels.base_score.tobytes()


def metrics(training):
    """What the history says of the model, without bytes and seconds."""
    return [(record.builder, record.train, record.validation) for record in training.history]


def model_bits(model):
    """All of a model but its history: XGBoost writes every number so that it is read again to the last bit."""
    saved = json.loads(model.booster.save_raw("json"))
    saved["learner"].pop("attributes", None)
    return saved


# --- trees grown together --------------------------------------------------------------------------------------------


def joint_sessions(members, secret=3, folder=None, **given):
    """As `sessions`; what every party draws for itself follows from its name, unless its folder keeps it."""
    made = sessions(members, secret=secret, folder=folder, **given)
    for session in made:
        if folder is None or not any(session.folder.glob("*.key")):
            session.private = session.name.encode().ljust(32)
    return made


def grow_together(transport, journal=None, callbacks=(), min_parties=None, **params):
    """The joint recipe, as the hub runs it, and the model as its receiver opens it."""
    checked = settled(**{"recipe": "joint"} | params)
    prepared = hub.prepare(transport, checked)
    key = boxes.new_key() if checked.masked else None
    order = hub.JointOrder(key and msg.SignedKey(key=boxes.public_half(key)))
    recovery = hub.Recovery(journal or hub.open_joint_journal(), min_parties)
    grown = hub.train_together(transport, prepared, checked, order, callbacks=callbacks, recovery=recovery)
    data = boxes.content_of(boxes.open_box(key, grown.sealed)) if key else grown.sealed
    return grown, models.from_bytes(data, "The sealed model")
