"""What several commands share: the terminal, options with the same meaning, a check of the files to write."""

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from simfl.errors import DataError, FileError
from simfl.params import RecipeName, defaults, descriptions

console, stderr = Console(), Console(stderr=True)
DEFAULT, HELP = defaults(), descriptions()

Label = Annotated[str | None, typer.Option(metavar="COL", help="the column to learn (not for LIBSVM)")]
Labels = Annotated[
    list[str] | None,
    typer.Option("--label", metavar="COL", help="the column to learn (not for LIBSVM); twice: bounds of a time"),
]
Event = Annotated[
    str | None, typer.Option(metavar="COL", help="the label is a time: 1 where something happened then, 0 not yet")
]
Weight = Annotated[
    str | None, typer.Option(metavar="COL", help="the column that says how much each row counts, from 0 on")
]
Drop = Annotated[
    list[str] | None, typer.Option(metavar="COL", help="leave this column out (can be given several times)")
]
Recipe = Annotated[RecipeName, typer.Option(help=HELP["recipe"])]
Seed = Annotated[
    int,
    typer.Option(min=0, max=2**32 - 1, help="seed of the split into parties, of the held-out rows and of the training"),
]
Json = Annotated[Path | None, typer.Option("--json", metavar="OUT", help="write the results as JSON too")]
Run = Annotated[Path, typer.Argument(metavar="RUN", help="a run's folder, with its run.json")]
Open = Annotated[bool, typer.Option("--open", help="open it in the browser")]


@contextmanager
def offering_to_drop() -> Iterator[None]:
    """Where columns of a file cannot be used, say which options leave them out."""
    from simfl.data.schema import UnusableColumnsError

    try:
        yield
    except UnusableColumnsError as error:
        options = " ".join(shlex.join(["--drop", name]) for name in error.columns)
        raise DataError(f"{error} To leave out what cannot be used: {options}") from None


def check_writable(*paths: Path | None) -> None:
    """Refuse files that cannot be written: before the work, not after it."""
    for path in paths:
        if path is not None and (path.is_dir() or not path.parent.is_dir()):
            raise FileError(f"{path} cannot be written: its folder does not exist, or it is a folder itself.")
