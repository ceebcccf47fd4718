"""The command `simfl`: all subcommands, the common options, and errors as sentences."""

import logging
import sys
import warnings
from importlib.metadata import version as installed
from typing import Annotated

import typer

from simfl.cli import audit, deploy, models, simulate, status
from simfl.cli.options import console, stderr
from simfl.errors import SimFLError, TrainingStopped, tell_warnings

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)


def _show_version(wanted: bool) -> None:
    if wanted:
        console.print(installed("simfl"))
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="show the version")
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="show the messages of the logger 'simfl'")] = False,
) -> None:
    """Gradient-boosted trees across organisations that cannot pool their rows."""
    if verbose:
        from rich.logging import RichHandler

        logger = logging.getLogger("simfl")
        logger.addHandler(RichHandler(console=stderr, show_path=False))
        logger.setLevel(logging.INFO)


for command in (
    *(simulate.demo, simulate.simulate),
    *(models.report, models.watch, models.predict, models.export),
    audit.audit,
    *(deploy.init, deploy.check, deploy.join, deploy.provision, deploy.train, deploy.forget),
    *(status.status, status.runs, status.stop),
):
    app.command()(command)
app.add_typer(deploy.hub, name="hub")
app.add_typer(deploy.party, name="party")


def main() -> None:
    """Run the command line; an error is a sentence, not a traceback, and so is a warning."""
    try:
        with warnings.catch_warnings():
            tell_warnings(lambda text, kind: _say("[bold yellow]Warning:[/]", text))
            app()
    except TrainingStopped:  # the log has said why
        sys.exit(130)
    except SimFLError as error:
        _say("[bold red]Error:[/]", str(error))
        sys.exit(1)
    except KeyboardInterrupt:
        stderr.print("Stopped.")
        sys.exit(130)


def _say(kind: str, text: str) -> None:
    from rich.markup import escape

    stderr.print(f"{kind} {escape(text)}", highlight=False, soft_wrap=True)
