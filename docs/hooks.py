"""Fills pages from the package itself, so that they cannot go stale."""

from typing import Any

import msgspec
import typer

from simfl import cli, messages, params
from simfl.params.private import NOT_PRIVATE


def on_page_markdown(markdown: str, **_: Any) -> str:
    """MkDocs calls this for every page."""
    fills = {"parameters": parameters, "commands": commands, "messages": all_messages}
    for mark, text in fills.items():
        if f"<!-- {mark} -->" in markdown:
            markdown = markdown.replace(f"<!-- {mark} -->", text())
    return markdown


def parameters() -> str:
    """Grouped by who reads them, with the default of each recipe that has the parameter."""
    every = set(params.TreeParams.__struct_fields__)
    structs = params.SimilarParams, params.PaperParams, params.JointParams
    similar, paper, joint = ({*struct.__struct_fields__} for struct in structs)
    groups = {
        "Every recipe": every | {"recipe"},
        'Recipes "similar" and "paper"': (similar & paper) - joint,
        'Recipe "similar"': similar - paper,
        'Recipe "joint" with `epsilon`': {*params.PrivateParams.__struct_fields__} - joint,
    }
    meaning, parts = params.descriptions(), []
    for title, names in groups.items():
        listed = [name for name in params.NAMES if name in names]
        rows = [f"| `{name}` | {default(name)} | {meaning[name]}{without_epsilon(name)} |" for name in listed]
        parts += [f"## {title}", "", "| parameter | default | meaning |", "|---|---|---|", *rows, ""]
    return "\n".join(parts)


def without_epsilon(name: str) -> str:
    """What else is to be said of a parameter that has no meaning with epsilon."""
    return "; not available with epsilon" if name in NOT_PRIVATE else ""


def default(name: str) -> str:
    """The usual value, and those of the recipes that have another."""
    if name == "recipe":
        return f"`{params.defaults()[name]!r}`"
    structs = {**params.RECIPES} if name in NOT_PRIVATE else {**params.RECIPES, "with epsilon": params.PrivateParams}
    found = {recipe: fields[name].default for recipe, struct in structs.items() if name in (fields := of(struct))}
    values = {recipe: None if value is msgspec.NODEFAULT else value for recipe, value in found.items()}
    usual = next(iter(values.values()))
    others = [f"{recipe} `{value!r}`" for recipe, value in values.items() if value != usual]
    return ", ".join([f"`{usual!r}`", *others])


def of(struct: Any) -> dict[str, Any]:
    return {field.name: field for field in msgspec.structs.fields(struct)}


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
