"""The four hospitals: their page, picture and figures say the same."""

import pytest
from PIL import Image

from benchmarks import heart, pages
from simfl.simulate import experiment
from simfl.simulate.simulation import Measured


def test_the_page_of_the_hospitals_is_what_its_figures_make():
    rows = pages.read_csv(pages.RESULTS / "heart.csv")
    assert heart.page(rows).text == (pages.RESULTS / "heart.md").read_text()


def test_the_picture_of_the_hospitals_shows_the_page():
    rows = pages.read_csv(pages.RESULTS / "heart.csv")
    assert Image.open(heart.PICTURE).text["Description"] == heart.in_words(rows)


def test_gains_of_the_page_are_those_of_the_report():
    hospitals = experiment.heart({"n_trees": 3, "random_state": 0, "n_jobs": 1}, 2)
    splits = [hospitals.measured(number) for number in (0, 1)]
    rows = [row for number, measured in enumerate(splits) for row in heart.rows_of(measured, number)]
    for gain in Measured.over(splits).own_gains():
        assert heart.gains(rows, gain.party, "SimFL") == pytest.approx((gain.gain, gain.low, gain.high))
