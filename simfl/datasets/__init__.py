"""Tables that come with the package: real patients of four hospitals.

The files are in `simfl/datasets/heart`, with their source and licence (CC BY 4.0) in the README beside them.
"""

from importlib.resources import files

import pandas as pd

HOSPITALS = ("cleveland", "budapest", "zurich-basel", "long-beach")
LABEL = "disease"


def heart() -> dict[str, pd.DataFrame]:
    """Heart disease at four hospitals: 920 patients, 13 columns, many missing values, and `disease` (0 or 1).

    >>> tables = heart()
    >>> {hospital: (len(table), f"{table['disease'].mean():.0%} ill") for hospital, table in tables.items()}
    {'cleveland': (303, '46% ill'), 'budapest': (294, '36% ill'), 'zurich-basel': (123, '93% ill'),
     'long-beach': (200, '74% ill')}
    """
    return {hospital: _read(hospital) for hospital in HOSPITALS}


def _read(hospital: str) -> pd.DataFrame:
    with (files("simfl.datasets") / "heart" / f"{hospital}.csv").open("rb") as file:
        return pd.read_csv(file)
