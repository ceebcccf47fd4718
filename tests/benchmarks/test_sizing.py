import json

from benchmarks import pages, sizing


def test_the_sizes_for_operators_are_those_that_were_measured():
    found = json.loads((pages.RESULTS / "sizing.json").read_text())
    assert sizing.table(found) in (pages.RESULTS.parent / "operate" / "sizing.md").read_text()
