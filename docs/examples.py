"""Brings the package's docstrings into the form that the reference reads: numpy's."""

import re
from typing import Any

import griffe


class Examples(griffe.Extension):
    """Puts a heading before the first `>>>`, and the meaning of a parameter on a line of its own."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is None:
            return
        text = obj.docstring.value
        if "Parameters\n-----" in text or "Attributes\n-----" in text:
            text = re.sub(r"^(\w+) : (.+)$", r"\1\n    \2", text, flags=re.MULTILINE)
        lines = text.splitlines()
        first = next((i for i, line in enumerate(lines) if line.lstrip().startswith(">>>")), None)
        if first is not None:
            lines[first:first] = ["Examples", "--------"]
        obj.docstring.value = "\n".join(lines)
