"""Collects what the page for the file says beside the findings: study, rules, rehearsal, digests, what is kept."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from simfl.audit.dpia import Filing, Keeping, Leaving, seen_by
from simfl.audit.findings import Audit
from simfl.deploy import traces
from simfl.deploy.check import Checked, check
from simfl.deploy.party_file import PartyFile, read_bytes, read_party_file
from simfl.deploy.study import Study, read_study
from simfl.privacy.guarantee import guarantee
from simfl.report.record import versions


def gather(study_path: Path, party_path: Path, found: Audit) -> Filing:
    """All that the page says beside the findings."""
    study, own, checked = read_study(study_path), read_party_file(party_path), check(study_path, party_path)
    leaves = _leaves(study, checked)
    return Filing(
        study=study.name,
        party=own.name,
        date=datetime.now(UTC).isoformat(timespec="minutes"),
        processing=_processing(study, checked),
        leaves=[one for one in leaves if checked.rehearsed is None or one.sent is not None],
        unsent=[one.kind for one in leaves if checked.rehearsed is not None and one.sent is None],
        protections=checked.rehearsed.protections if checked.rehearsed else [],
        rules={name: _words(value) for name, value in msgspec.to_builtins(own.require).items()},
        refusals=checked.refusals,
        guarantee=guarantee(study.params(), len(study.parties)),
        spending=checked.epsilon,
        keeps={place: _keeps(place) for place in dict.fromkeys(kept.place for kept in traces.KEPT)},
        versions=versions(),
        digests=_digests(study_path, own, found),
    )


def _processing(study: Study, checked: Checked) -> dict[str, str]:
    params = study.params()
    columns = [f"{name} ({_kind(kind)})" for name, kind in study.columns.items()]
    return {
        "learned": f"{', '.join(study.target.learned) if study.target else 'the label'}, with {params.objective}",
        "from the columns": ", ".join(columns) or "all columns of the file",
        **({} if study.weight is None else {"rows count by": f"their weight in the column {study.weight}"}),
        "rows of this party": f"{checked.rows}, of which {params.validation_fraction:.0%} only measure",
        "parties": ", ".join(study.parties),
        "hub": f"{study.engine.host}, port {study.engine.port}; at least {study.parties_needed} parties to continue",
        "recipe": f"{params.recipe}, at most {params.n_trees} rounds of trees",
    }


def _kind(declared: str | list[str] | dict[str, Any]) -> str:
    """A column's kind, for people."""
    if isinstance(declared, list):
        return f"{len(declared)} categories"
    return declared if isinstance(declared, str) else "number, where its values lie is declared"


def _leaves(study: Study, checked: Checked) -> list[Leaving]:
    """Every kind of message. Greetings belong to runs between machines: a rehearsal has none."""
    params = study.params()
    sent = checked.rehearsed.sent if checked.rehearsed else {}
    masked = params.masked is not False
    return [
        Leaving(
            kind=kind,
            meaning=meaning,
            seen_by=seen_by(kind, masked=masked),
            sent=0 if kind == "Greeting" else sent.get(kind),
        )
        for kind, meaning in checked.leaves
    ]


def _keeps(place: traces.Place) -> list[Keeping]:
    """What is kept at a place; files of a run without its folder."""
    rows = [kept for kept in traces.KEPT if kept.place == place]
    short = [[file.removeprefix("runs/*/") for file in kept.files] for kept in rows]
    return [Keeping(files=files, holds=kept.holds, until=kept.until) for kept, files in zip(rows, short, strict=True)]


def _words(value: Any) -> str:
    """A rule's value, for people."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "not set" if value is None else ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _digests(study_path: Path, own: PartyFile, found: Audit) -> dict[str, str]:
    """SHA-256 of what the page is about: whoever has the files can compare."""
    return {
        "the study (simfl check shows its first half)": hashlib.sha256(read_bytes(study_path)).hexdigest(),
        "the party's table": own.source.digest(),
        "the audit (what --json writes)": hashlib.sha256(found.to_json().encode()).hexdigest(),
    }
