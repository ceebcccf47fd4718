"""An experiment: one table in parties, all methods compared on it, over one or several splits into held-out rows."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pandas as pd

from simfl import datasets
from simfl.arrays import AnyArray
from simfl.callbacks import Callback
from simfl.data.files import Dataset
from simfl.data.schema import Schema
from simfl.simulate.comparison import Comparison, compare
from simfl.simulate.processes import Spare
from simfl.simulate.simulation import Measured, Simulation, set_up
from simfl.training.losses import labels_of

NO_SPARE: Final = Spare()


@dataclass(frozen=True)
class Outcome:
    """What was measured over all splits; parties and models are those of the first."""

    played: Simulation
    compared: Comparison
    measured: Measured


@dataclass(frozen=True)
class Experiment:
    """A table, whose rows are which, the parameters of the training, and the number of splits."""

    data: Dataset
    parts: Mapping[str, AnyArray]
    params: dict[str, Any]
    n_splits: int = 1

    def run(
        self,
        tell: Callable[[str], None] = lambda doing: None,
        watch: Callable[[Simulation], Sequence[Callback]] = lambda played: [],
        spare: Spare = NO_SPARE,
    ) -> Outcome:
        """Train and measure. `tell` gets what comes next; `watch` gives the callbacks of the first split.

        `spare` processes take their part of the splits. The results are the same.
        """
        elsewhere = spare.begin(self.measured, self.n_splits)
        played = self._set_up(0)
        compared = compare(played.parties, played.held_out, self._seeded(0), tell=tell, callbacks=watch(played))
        measured = {0: played.measured(compared, tell)}
        for number in sorted(range(1, self.n_splits), key=elsewhere.__contains__):  # first those that are done here
            tell(f"split {number + 1} of {self.n_splits}")
            measured[number] = elsewhere[number].result() if number in elsewhere else self.measured(number)
        return Outcome(played, compared, Measured.over([measured[number] for number in range(self.n_splits)]))

    def measured(self, number: int) -> Measured:
        """What is measured on one of the splits."""
        played = self._set_up(number)
        found = compare(played.parties, played.held_out, self._seeded(number), callbacks=[])
        return played.measured(found)

    def _seeded(self, number: int) -> dict[str, Any]:
        return self.params | {"random_state": self.params["random_state"] + number}

    def _set_up(self, number: int) -> Simulation:
        stratify = labels_of(self.params["objective"]) == "classes"
        return set_up(self.data, self.parts, self.params["random_state"] + number, stratify=stratify)


def heart(params: dict[str, Any], n_splits: int) -> Experiment:
    """The four hospitals that come with the package."""
    tables = datasets.heart()
    whole = pd.concat(tables.values(), ignore_index=True)
    X, y = whole.drop(columns=datasets.LABEL), whole[datasets.LABEL].to_numpy()
    ends = np.cumsum([len(table) for table in tables.values()])
    parts = dict(zip(tables, np.split(np.arange(len(y)), ends[:-1]), strict=True))
    return Experiment(Dataset(X, y, Schema.propose(X)), parts, params | {"objective": "binary:logistic"}, n_splits)
