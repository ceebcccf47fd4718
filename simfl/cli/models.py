"""For whoever has a model or the folder of a run (predict, export, report, watch)."""

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from simfl.cli.options import Open, Run, check_writable, console

ModelFile = Annotated[Path, typer.Argument(metavar="MODEL", help="a model that SimFL has saved")]


def report(
    run: Run,
    show: Open = False,
    audit: Annotated[
        Path | None,
        typer.Option(metavar="JSON", help="put what `simfl audit --json JSON` found into the run and its report"),
    ] = None,
) -> None:
    """Write the report of a run: one HTML page that needs no network.

    Example: simfl report runs/demo --open
    """
    from simfl.audit.findings import Audit
    from simfl.report import page
    from simfl.report.record import RunRecord

    if audit is not None:
        msgspec.structs.replace(RunRecord.load(run), audit=Audit.load(audit).for_report()).save(run)
    path = page.write(run)
    console.print(f"Report: {path}", soft_wrap=True)
    if show:
        typer.launch(path.resolve().as_uri())


def watch(
    run: Run,
    port: Annotated[int, typer.Option(min=0, max=65535, help="where to listen; 0: any free port")] = 8765,
    show: Open = False,
) -> None:
    """Show a run in the browser while it is under way. Listens on this machine only; Ctrl-C ends it."""
    from simfl.report.watch import serve

    with serve(run, port) as server:
        address = f"http://localhost:{server.server_address[1]}/"
        console.print(f"Watching {run} at {address}", soft_wrap=True)
        if not run.is_file() and not (run / "run.json").exists():
            console.print("There is no run yet: the page waits for it.", style="dim")
        if show:
            typer.launch(address)
        server.serve_forever()


def predict(
    model: ModelFile,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="a CSV or Parquet file with the model's columns")],
    out: Annotated[
        Path | None, typer.Option(metavar="OUT", help="a CSV or Parquet file for the predictions; else the terminal")
    ] = None,
) -> None:
    """Predict the rows of a file: the prediction and, for classes, the probability of each.

    Example: simfl predict model.ubj patients.csv --out predictions.csv
    """
    check_writable(out)
    from simfl.data.files import read_frame, to_csv, write_frame
    from simfl.model import load, predictions

    found = predictions(load(model), read_frame(file))
    if out is None:
        typer.echo(to_csv(found), nl=False)
        return
    write_frame(found, out)
    console.print(f"{len(found)} predictions: {out}", soft_wrap=True)


def export(
    model: ModelFile, out: Annotated[Path, typer.Argument(metavar="OUT", help="the file to write, ending in .onnx")]
) -> None:
    r"""Write a model for ONNX runtimes. Needs simfl\[onnx]."""
    check_writable(out)
    from simfl.integrations import to_onnx
    from simfl.model import load

    to_onnx(load(model), out)
    console.print(f"ONNX: {out}", soft_wrap=True)
