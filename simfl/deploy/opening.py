"""How the hub opens a run: every party is greeted, and everything that does not fit is named at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec

from simfl import hub
from simfl import messages as msg
from simfl.deploy.orders import Order
from simfl.deploy.study import Study
from simfl.errors import DataError, FileError, StudyError
from simfl.hub.asking import ask_all, ask_each
from simfl.params import PREPARE_NAMES, Params, is_private
from simfl.transport.base import Transport


def read_json(path: Path, kind: Any) -> Any:
    """What an earlier job wrote into the folder of the run."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.DecodeError) as error:
        raise FileError(f"{path} cannot be read ({error}). Start a new training, without --resume.") from None


class _Found(msgspec.Struct):
    protocol: int


def read_prepared(path: Path) -> hub.Prepared | None:
    """What an earlier job found in stage 1. Nothing if another version did: stage 1 begins again."""
    if not path.exists() or read_json(path, _Found).protocol != msg.VERSION:
        return None
    found: hub.Prepared = read_json(path, hub.Prepared)
    return found


def check_unchanged(prepared: hub.Prepared, params: Params, described: Mapping[str, msg.Description]) -> None:
    """Refuse to resume a training whose tables or parameters have changed since it began."""
    changes: list[tuple[str, Any, Any]]
    changes = [(f"the rows of {party}", prepared.rows.get(party), d.n_rows) for party, d in described.items()]
    changes += [(name, getattr(prepared.params, name, None), getattr(params, name, None)) for name in PREPARE_NAMES]
    facts = [f"{what}: {then!r} then, {now!r} now" for what, then, now in changes if then != now]
    if facts:
        raise StudyError(
            f"This training cannot be resumed, because something has changed since it began ({'; '.join(facts)}). Put "
            "it back, or start a new training without --resume."
        )


def handshake(transport: Transport, study: Study, order: Order) -> dict[str, msg.Greeting]:
    """Check that every table fits the study and that they all fit together. All problems come in one error."""
    greetings = greet(transport, order)
    problems = [f"{party}: {problem}" for party, g in greetings.items() for problem in g.problems]
    sound = [party for party, greeting in greetings.items() if not greeting.problems]
    problems += _mismatches(transport, sound, study, order.seed)
    if problems:
        raise StudyError("\n- ".join(["The parties and the study do not fit together.", *problems]))
    return greetings


def greet(transport: Transport, order: Order) -> dict[str, msg.Greeting]:
    """Send everybody the study and the name of the run."""
    question = msg.Greet(version=msg.VERSION, simfl=version("simfl"), run=order.run, study=order.study)
    return ask_all(transport, question, msg.Greeting)


def _mismatches(transport: Transport, parties: list[str], study: Study, seed: int) -> list[str]:
    """How the tables and the labels of these parties differ from one another."""
    if not parties:
        return []
    params = study.params()
    checks: list[tuple[msg.Request, Any, Callable[[Any], Any]]] = [
        (hub.description_request(params, seed), msg.Description, hub.check_same_form),
    ]
    if not is_private(params):  # else the study declares the classes
        labels = msg.DescribeLabels(objective=params.objective)
        checks.append((labels, msg.Classes, lambda replies: hub.check_labels(replies, params)))
    problems = []
    for question, kind, check in checks:
        try:
            check(ask_each(transport, dict.fromkeys(parties, question), kind))
        except (DataError, StudyError) as error:
            problems.append(str(error))
    return problems
