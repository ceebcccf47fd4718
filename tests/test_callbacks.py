import numpy as np

import simfl
from simfl.callbacks import ProgressBar, SearchBar, TreeRecord, default_callbacks
from simfl.params import train_params


def test_away_from_a_terminal_there_is_silence(capfd):
    rng = np.random.default_rng(0)
    parties = [simfl.Party(n, rng.normal(size=(30, 3)), rng.integers(0, 2, 30)) for n in "ab"]
    simfl.train(parties, n_trees=3, random_state=0)
    assert capfd.readouterr() == ("", "")
    assert default_callbacks() == []


def test_at_a_terminal_there_is_a_bar(monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    (bar,) = default_callbacks()
    assert isinstance(bar, ProgressBar)


def test_the_bar_shows_builder_and_metric():
    bar = ProgressBar()
    bar.before_training(["a", "b"], train_params(n_trees=5))
    bar.after_tree(
        TreeRecord(round=0, builder="b", train={"logloss": 0.5}, validation={"logloss": 0.25}, bytes=1, seconds=0.1)
    )
    task = bar.progress.tasks[0]
    assert (task.completed, task.total) == (1, 5)
    assert task.fields["facts"] == "logloss 0.2500  built by b"
    bar.after_training([])


def test_the_search_bar_adds_up_the_searches_of_all_parties():
    with SearchBar(60, shown=False) as bar:
        for listen in (bar.listener(), bar.listener()):
            for done in (5, 10, 15, 5, 15):  # two searches over 15 rows each
                listen(done, 15)
        assert bar.progress.tasks[0].completed == 60
