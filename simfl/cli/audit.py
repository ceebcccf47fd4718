"""For the auditor: attack what a party would send, before anything is sent (audit)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simfl.cli import options as shared
from simfl.cli.options import check_writable, console, offering_to_drop, stderr
from simfl.data.header import Asked, check_columns
from simfl.errors import ParameterError
from simfl.params import Matching
from simfl.storage import write_atomically

if TYPE_CHECKING:
    from simfl.audit.audit import Options
    from simfl.audit.findings import Audit
    from simfl.party import Party

# A study says all the rest.
_BESIDE_STUDY = ("file", "party", "max_excess", "advice", "attack_model", "seed", "json", "out", "dpia")

File = Annotated[
    Path,
    typer.Argument(metavar="FILE", help="a study.toml (its parameters, and the table of your party.toml), or a table"),
]
PartyFile = Annotated[
    Path | None, typer.Option(metavar="PARTY", help="with a study: your party file; default: party.toml beside it")
]
AnyMatching = Annotated[Matching | None, typer.Option(help="tokens seen by the hub, or hash values seen by all")]
Masked = Annotated[bool, typer.Option("--masked", help="the hub sees no sums")]
MinGroup = Annotated[
    int | None, typer.Option(min=1, help="least number of rows behind a sum; default: the recipe's", show_default=False)
]
Parties = Annotated[int, typer.Option(min=2, help="how many parties share the rows")]
Hashes = Annotated[int | None, typer.Option(min=1, metavar="L", help=shared.HELP["n_hashes"])]
BucketWidth = Annotated[float | None, typer.Option(metavar="R", help=shared.HELP["bucket_width"])]
Neighbors = Annotated[int | None, typer.Option(min=1, metavar="K", help=shared.HELP["n_neighbors"])]
MaxExcess = Annotated[
    float | None, typer.Option(metavar="X", help="exit with 1 if an attack beats guessing by more (0.1: 10 points)")
]
AttackModel = Annotated[
    bool, typer.Option("--attack-model", help="also attack the finished model: who is in it, and which rows (minutes)")
]
WithAdvice = Annotated[bool, typer.Option(help="search for n_hashes and bucket_width that keep attacks low")]
Page = Annotated[Path | None, typer.Option(metavar="PAGE.html", help="write a page for people")]
Dpia = Annotated[
    Path | None,
    typer.Option(metavar="PAGE.html", help="with a study: write the page that a data-protection officer files"),
]


def audit(
    context: typer.Context,
    file: File,
    party: PartyFile = None,
    label: shared.Label = None,
    weight: shared.Weight = None,
    drop: shared.Drop = None,
    matching: AnyMatching = None,
    masked: Masked = False,
    min_group: MinGroup = None,
    parties: Parties = 2,
    recipe: shared.Recipe = shared.DEFAULT["recipe"],
    hashes: Hashes = None,
    bucket_width: BucketWidth = None,
    neighbors: Neighbors = None,
    max_excess: MaxExcess = None,
    advice: WithAdvice = True,
    attack_model: AttackModel = False,
    seed: shared.Seed = 0,
    json: shared.Json = None,
    out: Page = None,
    dpia: Dpia = None,
) -> None:
    """Attack what this party would send, on its own rows, before anything is sent.

    With a study its own parameters count.

    Examples: simfl audit study.toml --out audit.html --dpia dpia.html
    simfl audit patients.csv --label outcome --matching shared
    simfl audit patients.csv --label outcome --recipe joint --parties 3
    """
    if file.suffix != ".toml":
        asked = Asked(() if label is None else (label,), drop=tuple(drop or ()), weight=weight)
        check_columns(file, asked)  # before anything heavy is loaded
    from simfl.audit.audit import Options

    check_writable(json, out, dpia)
    party = party or file.parent / "party.toml"
    if file.suffix == ".toml":
        rows, options = _read_study(context, file, party)
    elif dpia is not None:
        raise ParameterError("--dpia needs a study: it says what was approved. Run: simfl audit study.toml --dpia PAGE")
    else:
        params = {"recipe": recipe, "n_hashes": hashes, "bucket_width": bucket_width, "n_neighbors": neighbors}
        options = Options(matching=matching, masked=masked, min_group=min_group, parties=parties, params=params)
        rows, options = _read_table(file, label, weight, drop or (), options)
    limit = options.max_excess if max_excess is None else max_excess
    options = replace(options, advise=advice, attack_model=attack_model, random_state=seed, max_excess=limit)
    found = _attack(rows, options)
    for path, content in ((json, found.to_json), (out, found.html), (dpia, partial(_dpia, file, party, found))):
        if path is not None:
            write_atomically(path, content().encode())
            console.print(f"Written: {path}")
    _judge(found)


def _refuse_beside_study(context: typer.Context) -> None:
    """An option that a study would overrule is refused, not ignored."""
    sources = {name: context.get_parameter_source(name) for name in context.params if name not in _BESIDE_STUDY}
    given = [name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"]
    if given:
        words = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise ParameterError(f"{words} cannot be given with a study: its own parameters count. Change the study.")


def _read_table(
    file: Path, label: str | None, weight: str | None, drop: Sequence[str], options: Options
) -> tuple[Party, Options]:
    """The rows to attack, and the options with the name of the file."""
    from simfl.data.files import Target, read
    from simfl.party import Party

    with offering_to_drop():
        data = read(file, Target.of(label, None, weight), drop=drop)
    return Party(file.name, data.X, data.y, data.weight, schema=data.schema), replace(options, name=file.name)


def _read_study(context: typer.Context, study_path: Path, party_path: Path) -> tuple[Party, Options]:
    """The party's rows as the study reads them, and the study's parameters as they will be used."""
    from simfl.audit.audit import Options
    from simfl.deploy.tables import open_party

    _refuse_beside_study(context)
    study, party, _ = open_party(study_path, party_path)
    checked = study.params()
    named = {"matching", "masked", "min_group", "random_state"}
    params = {name: value for name, value in study.parameters.items() if name not in named}
    options = Options(
        name=f"{party.name} in {study.name}",
        matching=getattr(checked, "matching", None),
        masked=checked.masked is not False,
        min_group=checked.min_group,
        parties=max(len(study.parties), 2),
        max_excess=study.audit.max_excess,
        params=params,
    )
    return party, options


def _attack(party: Party, options: Options) -> Audit:
    """The findings, at the terminal."""
    from simfl.audit.audit import run

    with console.status("attacking") as status:
        found = run(party, options, tell=lambda attack: status.update(f"attacking: {attack}"))
    console.print(found.verdict, style="bold", highlight=False)
    if far := found.furthest:
        console.print(f"The furthest: {far.title} ({', '.join(far.roles)}).", highlight=False)
        console.print(found.table())
    console.print(found.roles())
    for finding in found.findings:
        console.print(f"- {finding.sentence}", highlight=False)
    for advice in found.advice:
        console.print(f"Advice, {advice.title[:1].lower()}{advice.title[1:]}: {advice.sentence}", highlight=False)
    for note in found.notes:
        console.print(f"Note: {note}", highlight=False)
    if found.not_run:
        titles = "; ".join(found.not_run)
        console.print(f"Not run, as it takes minutes (--attack-model): {titles}.", highlight=False)
    return found


def _dpia(study: Path, party: Path, found: Audit) -> str:
    """The page for the file, from these findings."""
    from simfl.audit.dpia import render
    from simfl.cli.dpia import gather

    return render(found, gather(study, party, found))


def _judge(found: Audit) -> None:
    """Exit status 1 if a finding is above its limit."""
    if found.exceeded:
        names = ", ".join(dict.fromkeys(finding.attack for finding in found.exceeded))
        stderr.print(f"[bold red]Above the limit:[/] {names}", highlight=False, soft_wrap=True)
        raise typer.Exit(1)
