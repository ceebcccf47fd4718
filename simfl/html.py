"""A few facts as a table for a notebook, whatever names the parties have."""

from collections.abc import Iterable
from html import escape


def facts(title: str, rows: Iterable[tuple[str, object]]) -> str:
    """A title and one line for each fact.

    >>> facts("Party <a>", [("rows", 7)])
    '<table><caption>Party &lt;a&gt;</caption><tr><th>rows</th><td>7</td></tr></table>'
    """
    lines = "".join(f"<tr><th>{escape(name)}</th><td>{escape(str(value))}</td></tr>" for name, value in rows)
    return f"<table><caption>{escape(title)}</caption>{lines}</table>"
