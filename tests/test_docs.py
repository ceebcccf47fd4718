import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_to_a_file_leads_somewhere(page):
    links = re.findall(r"\]\(([^)#:]+)\)", page.read_text())
    assert all((page.parent / link).exists() for link in links)


def test_every_file_of_the_package_is_on_the_map():
    text = (ROOT / "README.md").read_text()
    modules = {p.stem for p in (ROOT / "simfl").rglob("*.py")} - {"__init__", "__main__", "base", "local"}
    plumbing = {"arrays", "errors", "data", "callbacks", "guard", "sums"}
    assert all(name in text for name in modules - plumbing)
