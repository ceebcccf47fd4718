"""How the pages of an audit are filled in: its templates, which hold no script and load no other file."""

import jinja2


def points(share: float) -> str:
    """A difference of two shares, in percentage points.

    >>> points(0.123)
    '+12.3'
    """
    return f"{100 * share:+.1f}"


def template(name: str) -> jinja2.Template:
    """A template of `templates/`; what it does not know is an error, not a gap on the page."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("simfl.audit"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"percent": "{:.1%}".format, "points": points}
    return environment.get_template(name)
