"""Fills pages from the package itself, so that they cannot go stale."""

from typing import Any

import msgspec
import typer

from simfl import cli, messages, params


def on_page_markdown(markdown: str, **_: Any) -> str:
    """MkDocs calls this for every page."""
    fills = {"parameters": parameters, "commands": commands, "messages": all_messages}
    for mark, text in fills.items():
        if f"<!-- {mark} -->" in markdown:
            markdown = markdown.replace(f"<!-- {mark} -->", text())
    return markdown


def parameters() -> str:
    meaning = params.descriptions()
    parts = []
    for title, struct in (
        ("Stage 1: `simfl.prepare`", params.PrepareParams),
        ("Stage 2: `simfl.train`", params.TrainParams),
    ):
        rows = [f"| `{f.name}` | `{f.default!r}` | {meaning[f.name]} |" for f in msgspec.structs.fields(struct)]
        parts += [f"## {title}", "", "| parameter | default | meaning |", "|---|---|---|", *rows, ""]
    names = sorted({name for recipe in params.RECIPES.values() for name in recipe})
    parts += [
        "## What a recipe sets",
        "",
        f"| | {' | '.join(params.RECIPES)} |",
        "|---|" + "---|" * len(params.RECIPES),
    ]
    parts += [f"| `{n}` | {' | '.join(f'`{r.get(n)!r}`' for r in params.RECIPES.values())} |" for n in names]
    return "\n".join(parts)


def commands() -> str:
    group: Any = typer.main.get_command(cli.app)
    parts = []
    for name, command in group.commands.items():
        parts += [f"## simfl {name}", "", command.help or "", "", "| | |", "|---|---|"]
        for param in command.params:
            is_argument = param.param_type_name == "argument"
            usage = param.metavar or param.name.upper() if is_argument else ", ".join(param.opts)
            parts.append(f"| `{usage}` | {(getattr(param, 'help', '') or '').replace('|', '/')} |")
        parts.append("")
    return "\n".join(parts)


def all_messages() -> str:
    parts = []
    for title, kinds in (("Leaves a party", messages.Reply), ("Reaches a party", messages.Request)):
        parts += [f"## {title}", ""]
        for kind in kinds.__args__:
            fields = ", ".join(f"`{f.name}`" for f in msgspec.structs.fields(kind)) or "none"
            parts += [f"### {kind.__name__}", "", (kind.__doc__ or "").strip(), "", f"Fields: {fields}", ""]
    return "\n".join(parts)
