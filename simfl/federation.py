"""The two doors in one process: `prepare` (stage 1, once) and `train` (stage 2, many times)."""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np

from simfl import html, hub, messages
from simfl import model as models
from simfl.callbacks import (
    Callback,
    SearchBar,
    TreeRecord,
    checked_callbacks,
    default_callbacks,
    telling_of_compilation,
)
from simfl.errors import DataError, FileError, ParameterError
from simfl.joint.shared import Shared
from simfl.model import Model
from simfl.params import (
    NAMES,
    PREPARE_NAMES,
    TRAIN_NAMES,
    Matching,
    Objective,
    Params,
    RecipeName,
    documented,
    first_stage,
    given,
    is_private,
    prepare_params,
    refuse_unknown,
    train_params,
)
from simfl.party import Party, Session
from simfl.privacy import boxes
from simfl.privacy.tokens import SECRET_BYTES, private_of, secret_of
from simfl.storage import write_atomically
from simfl.training.losses import in_xgboost
from simfl.transport.local import LocalTransport

_ABOUT = "preparation.json"


class Preparation:
    """Stage 1, done: the similar rows of every party, or common cut points (joint), ready for many trainings.

    Holds the parties it was made from. `save` writes only what stage 1 found (row ids, or cuts; settings, no rows);
    `load` joins that with the parties' tables again and refuses tables that have changed.
    """

    def __init__(self, prepared: hub.Prepared, transport: LocalTransport[Session]) -> None:
        self.about = prepared
        self.transport = transport

    @property
    def sessions(self) -> list[Session]:
        """The parties at work."""
        return list(self.transport.handlers.values())

    @property
    def parties(self) -> list[Party]:
        """The parties that it was made from."""
        return [session.party for session in self.sessions]

    def __repr__(self) -> str:
        about = self.about
        names = ", ".join(f"{p} ({n} rows)" for p, n in zip(about.parties, about.n_rows, strict=True))
        found = "common cut points" if about.params.recipe == "joint" else f"{about.n_hashes} hashes"
        return f"Preparation({names}; {found}, {about.seconds:.1f} s)"

    def _repr_html_(self) -> str:
        about = self.about
        rows: list[tuple[str, object]] = [(p, f"{n:,} rows") for p, n in about.rows.items()]
        found = "common cut points" if about.params.recipe == "joint" else f"{about.n_hashes} hash values per row"
        return html.facts("Preparation", [*rows, ("recipe", about.params.recipe), ("found by", found)])

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a folder: settings for all, and one file per party. All of it or nothing."""
        target = Path(path)
        try:
            unfinished = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}."))
        except OSError as error:
            raise FileError(f"{target} cannot be written: {error.strerror}.") from None
        try:
            for number, session in enumerate(self.sessions):
                session.keep(unfinished / f"party-{number}.npz")
            write_atomically(unfinished / _ABOUT, msgspec.json.format(msgspec.json.encode(self.about)))
            _put_in_place(unfinished, target)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)

    @classmethod
    def load(cls, path: str | os.PathLike[str], parties: Iterable[Party]) -> Preparation:
        """Open what `save` wrote, with the parties it was made from."""
        folder = Path(path)
        try:
            about = msgspec.json.decode((folder / _ABOUT).read_bytes(), type=hub.Prepared)
        except OSError as error:
            raise FileError(f"There is no preparation at {folder}: {error.strerror}.") from None
        except msgspec.DecodeError as error:
            raise FileError(f"{folder / _ABOUT} is not a preparation: {error}.") from None
        parties = list(parties)
        names = [party.name for party in parties]
        if names != about.parties:
            raise DataError(f"The preparation {folder} is of the parties {about.parties}, not {names}.")
        transport = gather(parties, about.params.n_jobs)
        question = hub.description_request(about.params, about.seed)
        for number, session in enumerate(transport.handlers.values()):
            session.recall(folder / f"party-{number}.npz", question, about.schema)
        return cls(about, transport)


def _put_in_place(unfinished: Path, target: Path) -> None:
    """Rename a finished folder to its name. An old preparation is removed only when the new one is in its place."""
    if not target.exists():
        unfinished.rename(target)
        return
    if not (target / _ABOUT).is_file():
        raise FileError(f"{target} exists and is not a preparation: it is left as it is. Choose another name.")
    old = unfinished.with_name(f"{unfinished.name}.old")
    target.rename(old)
    try:
        unfinished.rename(target)
    except OSError as error:
        old.rename(target)
        raise FileError(f"{target} cannot be replaced: {error.strerror}. The old one is still there.") from None
    shutil.rmtree(old, ignore_errors=True)


@documented(PREPARE_NAMES)
def prepare(
    parties: Iterable[Party],
    *,
    recipe: RecipeName = "similar",
    n_hashes: int | None = None,
    bucket_width: float | None = None,
    hash_law: Literal["gaussian", "cauchy"] = "gaussian",
    n_neighbors: int | None = None,
    known_features: int | None = 0,
    matching: Matching | None = None,
    validation_fraction: float = 0.0,
    epsilon: float | None = None,
    masked: bool | None = None,
    random_state: Any = None,
    n_jobs: int | None = None,
    **unknown: Any,
) -> Preparation:
    """Stage 1: find the rows of different parties that resemble each other; with recipe="joint", common cut points.

    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> prepare([Party("north", X[::2], y[::2]), Party("south", X[1::2], y[1::2])], n_hashes=3, random_state=0)
    Preparation(north (75 rows), south (75 rows); 3 hashes, ... s)
    """
    params = given(locals()) | unknown
    with telling_of_compilation():
        ready = _prepare(parties, params)
    if ready.about.params.recipe == "joint" and not is_private(ready.about.params):
        _set_private_keys(ready, ready.about.seed)
        ready.about = hub.agree_on_cuts(ready.transport, ready.about)
    return ready


def _prepare(parties: Iterable[Party], params: dict[str, Any]) -> Preparation:
    """Without cut points: a training agrees on them by itself."""
    checked = prepare_params(**params)
    transport = gather(parties, checked.n_jobs)
    sessions = list(transport.handlers.values())
    # The parties share a secret that the hub does not get. A seed stands in for it: the same seed, the same model.
    seed = checked.random_state
    secret = secrets.token_bytes(SECRET_BYTES) if seed is None else secret_of(seed)
    with SearchBar(sum(len(s.party.rows.y) for s in sessions) * (len(sessions) - 1)) as bar:
        for session in sessions:
            session.secret, session.progress = secret, bar.listener()
        prepared = hub.prepare(transport, checked, bar.listener())
    for session in sessions:
        session.progress = None
    return Preparation(prepared, transport)


@documented(NAMES)
def train(
    parties: Iterable[Party] | Preparation,
    *,
    callbacks: Sequence[Callback] | None = None,
    verbose: bool | int | None = None,
    init_model: Model | None = None,
    recipe: RecipeName | None = None,
    objective: Objective = "binary:logistic",
    scale_pos_weight: float | None = None,
    quantile_alpha: float | None = None,
    tweedie_variance_power: float | None = None,
    aft_loss_distribution: Literal["normal", "logistic", "extreme"] | None = None,
    aft_loss_distribution_scale: float | None = None,
    n_trees: int | None = None,
    learning_rate: float | None = None,
    max_depth: int | None = None,
    min_child_weight: float = 1.0,
    gamma: float = 0.0,
    reg_lambda: float | None = None,
    reg_alpha: float = 0.0,
    max_delta_step: float | None = None,
    subsample: float | None = None,
    colsample_bytree: float = 1.0,
    max_bin: int | None = None,
    monotone_constraints: dict[str, Literal[-1, 0, 1]] | list[Literal[-1, 0, 1]] | None = None,
    interaction_constraints: list[list[str | int]] | None = None,
    base_score: float | None = None,
    eval_metric: str | list[str] | None = None,
    early_stopping_rounds: int | None = None,
    validation_fraction: float = 0.0,
    min_group: int | None = None,
    masked: bool | None = None,
    random_state: Any = None,
    n_jobs: int | None = None,
    n_hashes: int | None = None,
    bucket_width: float | None = None,
    hash_law: Literal["gaussian", "cauchy"] = "gaussian",
    n_neighbors: int | None = None,
    known_features: int | None = 0,
    matching: Matching | None = None,
    rematch: int = 50,
    epsilon: float | None = None,
    delta: float = 1e-05,
    colluding: int | None = None,
    rows: int | None = None,
    classes: list[bool | int | float | str] | None = None,
    max_rows_per_person: int | None = None,
    **unknown: Any,
) -> Model:
    """Train one model over all parties.

    Takes parties, or a preparation (`prepare`) to skip stage 1, whose parameters it then has. `callbacks`: None shows a
    progress bar at a terminal, an empty list shows nothing. `verbose`: 0 shows nothing, 1 the bar, 2 a line after every
    tree. `init_model`: an earlier model to continue from; `n_trees` are then added to its trees.

    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> parties = [Party("north", X[::2], y[::2]), Party("south", X[1::2], y[1::2])]
    >>> model = train(parties, objective="multi:softprob", n_trees=10, random_state=0)
    >>> model.n_trees, (model.predict(X) == y).mean() > 0.95
    (10, np.True_)
    """
    params = given(locals()) | unknown
    shown = default_callbacks(verbose) if callbacks is None else checked_callbacks(callbacks)
    if init_model is not None and not isinstance(init_model, Model):
        raise ParameterError(f"init_model is a {type(init_model).__name__}. Give a model: simfl.load(path) opens one.")
    with nullcontext() if callbacks == [] or verbose == 0 else telling_of_compilation():
        return train_and_keep(parties, shown, params, init_model)[0]


def train_and_keep(
    parties: Iterable[Party] | Preparation,
    callbacks: Sequence[Callback],
    params: dict[str, Any],
    init_model: Model | None = None,
) -> tuple[Model, Preparation]:
    """Like `train`; also returns the preparation that was trained on."""
    if isinstance(parties, Preparation):
        ready = parties
        about = ready.about.params
        _refuse_prepared(params, about.recipe)
        own = {*about.__struct_fields__, "recipe"} - {"random_state"}  # every training draws by its own seed
        known = {name: getattr(about, name) for name in PREPARE_NAMES if name in own}
        params = known | params
    else:
        train_params(**params)  # before stage 1: a word that does not exist costs nobody a search
        ready = _prepare(parties, first_stage(params))
    checked = train_params(**params)
    if is_private(checked) and not is_private(ready.about.params):
        raise ParameterError(
            "This was prepared without epsilon: rows were counted. Give epsilon to simfl.prepare, too."
        )
    ready.transport.share(checked.n_jobs)
    before = ready.transport.traffic.copy() if isinstance(parties, Preparation) else None
    start = models.warm_start(init_model) if init_model else None
    if checked.recipe == "joint":
        model = _grow_together(ready, checked, callbacks, start)
    else:
        training = hub.train(ready.transport, ready.about, checked, callbacks=callbacks, warm_start=start)
        model = model_of(training)
    history = model.history
    if init_model is not None:
        history = [*init_model.history, *(_later(r, init_model.n_trees) for r in history)]
    return models.with_account(model, history, ready.transport.traffic.since(before)), ready


def _grow_together(
    ready: Preparation, params: Params, callbacks: Sequence[Callback], start: models.WarmStart | None
) -> Model:
    """The joint recipe. With masks the hub gets the model sealed, for a key that only this call has."""
    _set_private_keys(ready, ready.about.seed if params.random_state is None else params.random_state)
    key = boxes.new_key() if params.masked else None
    receiver = messages.SignedKey(key=boxes.public_half(key)) if key else None
    order = hub.JointOrder(receiver, start)
    grown = hub.train_together(ready.transport, ready.about, params, order, callbacks=callbacks)
    data = boxes.content_of(boxes.open_box(key, grown.sealed)) if key else grown.sealed
    model = models.from_bytes(data, "The sealed model")
    return models.with_account(model, account(model.history, grown.history), {})


def _set_private_keys(ready: Preparation, seed: int) -> None:
    """A seed stands in for what each party draws by itself, except the noise of epsilon, which is always new."""
    for session in ready.sessions:
        session.private, session.noise_key = private_of(seed, session.name), secrets.token_bytes(SECRET_BYTES)


def account(scored: list[TreeRecord], facts: list[TreeRecord]) -> list[TreeRecord]:
    """Rounds with their metrics, and what only the hub knows of them: bytes, seconds, and who was absent.

    Rounds that the hub says nothing of stay as they are.
    """
    told = [
        msgspec.structs.replace(own, bytes=known.bytes, seconds=known.seconds, absent=known.absent)
        for own, known in zip(scored, facts, strict=False)
    ]
    return [*told, *scored[len(facts) :]]


def model_of(training: hub.Training) -> Model:
    """The model of a training's trees, with its history."""
    params, labels, start = training.params, training.labels, training.warm_start
    about = models.About(
        classes=labels.classes,
        history=training.history,
        traffic={},
        schema=training.prepared.schema,
        gain=np.sum(training.gains, axis=0).tolist() if training.gains else None,
    )
    rounds = [*(start.rounds if start else []), *training.rounds]
    return models.build(rounds, labels.base_score, in_xgboost(params), training.prepared.n_features, about)


def _later(record: TreeRecord, rounds: int) -> TreeRecord:
    return msgspec.structs.replace(record, round=record.round + rounds)


def _refuse_prepared(params: dict[str, Any], recipe: str) -> None:
    wanted = params.get("recipe", recipe)
    if wanted != recipe:
        raise ParameterError(f"This was prepared with recipe={recipe!r}: run simfl.prepare with the other one first.")
    refuse_unknown(params, TRAIN_NAMES)


def gather(parties: Iterable[Party], n_jobs: int | None = None) -> LocalTransport[Session]:
    """A transport to new sessions of these parties. There must be some, with different names."""
    parties = list(parties) if isinstance(parties, Iterable) else [parties]
    if not all(isinstance(party, Party) for party in parties):
        raise DataError(f"Give a list of simfl.Party objects, not {[type(party).__name__ for party in parties]}.")
    if not parties:
        raise DataError("There is no party. Give at least one simfl.Party.")
    repeated = sorted(name for name, times in Counter(party.name for party in parties).items() if times > 1)
    if repeated:
        raise DataError(f"Several parties are named {repeated}. Give every party a name of its own.")
    sessions, shared = [Session(party) for party in parties], Shared()
    for session in sessions:
        session.shared = shared
    return LocalTransport(sessions, n_jobs)
