import csv

from benchmarks.pages import Page, percent, write_csv


def test_a_page_tells_its_command_date_versions_and_that_it_was_quick(tmp_path):
    page = Page("Title", "python -m benchmarks.paper theta", quick=True)
    page.table(["data", "error"], [["a9a", 15.1]])
    page.write(tmp_path / "results" / "page.md")
    text = (tmp_path / "results" / "page.md").read_text()
    assert text.startswith("# Title\n")
    assert "QUICK RUN" in text
    assert "`python -m benchmarks.paper theta`" in text
    assert "simfl 0." in text
    assert "| data | error |\n|---|---:|\n| a9a | 15.1 |" in text


def test_a_csv_has_every_column_that_any_row_has(tmp_path):
    write_csv(tmp_path / "x.csv", [{"a": 1}, {"a": 2, "failed": 'no, not "here"'}])
    with (tmp_path / "x.csv").open() as file:
        assert list(csv.DictReader(file)) == [{"a": "1", "failed": ""}, {"a": "2", "failed": 'no, not "here"'}]


def test_a_missing_number_is_a_dash():
    assert [percent(v) for v in (None, float("nan"), 0.5)] == ["-", "-", "50.0"]
