"""The pictures of the page: every method with its interval, and what was published."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.pages import COLOURS, OTHERS
from benchmarks.paper.errors import pyplot, save
from benchmarks.published import private
from benchmarks.published.estimates import Found
from benchmarks.published.figures import FEDXGBLLR, FEDXGBLLR_ROWS, MADDOCK, MADDOCK_PLAIN, PUBLISHED
from benchmarks.published.measure import ALL_IN, MEAN, METHODS, POOLED
from benchmarks.published.tables import BRCA, HEART, IID, UNIFED

NAMES = {"joint": "SimFL, joint", "similar": "SimFL, similar", "paper": "SimFL, paper's recipe"}
PANELS = {  # data, where: title, axis
    ("default_credit", POOLED): ("UniFed, default_credit", "AUC"),
    ("student", POOLED): ("UniFed, student", "MSE (less is better)"),
    ("breast", POOLED): ("UniFed, breast", "AUC"),
    (HEART, MEAN): ("FLamby, four hospitals", "accuracy, mean of centres"),
    (HEART, POOLED): ("FLamby, four hospitals", "accuracy, pooled test"),
    (BRCA, MEAN): ("FLamby, TCGA-BRCA", "C-index, mean of centres"),
    (BRCA, POOLED): ("FLamby, TCGA-BRCA", "C-index, pooled test"),
}


def draw(found: Found, guaranteed: Sequence[Mapping[str, Any]], where: Path) -> None:
    """All pictures."""
    plot_tables(found, where / "published.png")
    if any(name in found.names() for name in IID):
        plot_clients(found, where / "published-clients.png")
    plot_epsilon(guaranteed, where / "published-epsilon.png")


def plot_tables(found: Found, path: Path) -> None:
    """One panel per published figure: a dot and an interval per method, the best published one as a line."""
    shown = [place for place in PANELS if place[0] in found.names()]
    if not shown:
        return
    plt = pyplot()
    n_columns = min(4, len(shown))
    n_rows = -(-len(shown) // n_columns)
    figure, axes = plt.subplots(
        n_rows, n_columns, figsize=(2.6 * n_columns + 1.2, 2.3 * n_rows), sharey=True, squeeze=False
    )
    for axis in axes.flat[len(shown) :]:
        axis.set_visible(False)
    for axis, place in zip(axes.flat, shown, strict=False):
        _tables_panel(axis, found, place)
    axes[0, 0].set_yticks(range(len(METHODS)), [NAMES.get(method, method) for method in METHODS], fontsize=8)
    axes[0, 0].invert_yaxis()
    figure.suptitle("Black line: the best published federated figure. Bars: 95 % over seeds and test rows", fontsize=10)
    save(figure, path)


def _tables_panel(axis: Any, found: Found, place: tuple[str, str]) -> None:
    data, where = place
    title, label = PANELS[place]
    settings = "published" if data in UNIFED else "stopped"
    most = np.inf if PUBLISHED[data].lower_is_better else 1.0  # of AUC, accuracy and C-index
    for level, method in enumerate(METHODS):
        got = found.estimate(where, data=data, method=method, settings=settings)
        if got:
            ends = [[got.half], [min(got.half, most - got.mean)]]
            axis.errorbar(got.mean, level, xerr=ends, fmt="o", markersize=5, color=COLOURS[method], capsize=2)
    axis.axvline(PUBLISHED[data].best(where).scores[where], color=OTHERS, linewidth=2, clip_on=False)
    axis.set_xlim(right=min(axis.get_xlim()[1], most))
    axis.set_title(title, fontsize=9)
    axis.set_xlabel(label, fontsize=8)
    axis.tick_params(labelsize=8)
    axis.spines[["top", "right"]].set_visible(False)


def plot_clients(found: Found, path: Path) -> None:
    """One panel per table: accuracy against the number of clients."""
    plt = pyplot()
    names = [name for name in IID if name in found.names()]
    figure, axes = plt.subplots(1, len(names), figsize=(3.4 * len(names), 3.4), squeeze=False)
    for axis, name in zip(axes.flat, names, strict=True):
        published, _ = FEDXGBLLR[name]
        at = list(published)
        for method in METHODS:
            _clients_line(axis, found, name, method, at)
        axis.plot(at, [100 * published[n] for n in at], "s--", color=OTHERS, label="FedXGBllr, Flower's reproduction")
        ours, theirs = FEDXGBLLR_ROWS[name]
        rows = f"{ours:,} rows" if ours == theirs else f"{ours:,} rows, Flower {theirs:,}"
        axis.set_title(f"{name} ({rows})", fontsize=9)
        axis.set_xticks(at)
        axis.set_xlabel("clients", fontsize=8)
        axis.tick_params(labelsize=8)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0, 0].set_ylabel("accuracy, percent", fontsize=8)
    figure.legend(
        *axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=8, frameon=False
    )
    save(figure, path)


def _clients_line(axis: Any, found: Found, name: str, method: str, at: Sequence[int]) -> None:
    told: dict[str, Any] = {"data": name, "method": method, "settings": "stopped"}
    got = [found.estimate(**told, **({} if method == ALL_IN else {"clients": n})) for n in at]
    aside = 0.12 * (METHODS.index(method) - 2.5)  # so that intervals do not hide each other
    known = [(n + aside, e) for n, e in zip(at, got, strict=True) if e]
    axis.errorbar(
        [n for n, _ in known],
        [100 * e.mean for _, e in known],
        yerr=[100 * e.half for _, e in known],
        fmt="--" if method == ALL_IN else "o-",
        markersize=4,
        linewidth=1.4,
        capsize=2,
        elinewidth=0.8,
        color=COLOURS[method],
        label=NAMES.get(method, method),
    )


def plot_epsilon(entries: Sequence[Mapping[str, Any]], path: Path) -> None:
    """AUC against epsilon: theirs on their table, ours on ours, every one with its training without noise."""
    plt = pyplot()
    figure, axes = plt.subplots(1, 1 + len(private.TABLES), figsize=(9.6, 3.4), squeeze=False)
    theirs, *ours = axes.flat
    for (kind, at), style in zip(MADDOCK.items(), ("s-", "^--"), strict=True):
        theirs.plot(list(at), list(at.values()), style, color=OTHERS, markersize=4, label=f"Maddock et al., {kind}")
    theirs.axhline(MADDOCK_PLAIN, color=OTHERS, linestyle=":", label="Maddock et al., no noise")
    theirs.set_title("Give Me Some Credit (published)", fontsize=9)
    for axis, name in zip(ours, private.TABLES, strict=True):
        _epsilon_panel(axis, entries, name)
    for axis in axes.flat:
        axis.set_xscale("log")
        axis.set_xticks(private.EPSILONS, [f"{e:g}" for e in private.EPSILONS])
        axis.minorticks_off()
        axis.set_xlabel("epsilon", fontsize=8)
        axis.tick_params(labelsize=8)
        axis.spines[["top", "right"]].set_visible(False)
    theirs.set_ylabel("AUC", fontsize=8)
    named = {label: h for axis in axes.flat for h, label in zip(*axis.get_legend_handles_labels(), strict=True)}
    figure.legend(named.values(), named.keys(), loc="outside lower center", ncols=3, fontsize=8, frameon=False)
    save(figure, path)


def _epsilon_panel(axis: Any, entries: Sequence[Mapping[str, Any]], name: str) -> None:
    for colluding, style in zip(private.TRUST, ("o-", "o--"), strict=True):
        found = {e: got for e in private.EPSILONS if (got := private.at(entries, name, e, colluding))}
        aside = 1.04 if colluding else 0.96  # so that intervals do not hide each other
        axis.errorbar(
            [e * aside for e in found],
            [got.mean for got in found.values()],
            yerr=[got.half for got in found.values()],
            fmt=style,
            color=COLOURS["joint"],
            markersize=4,
            capsize=2,
            elinewidth=0.8,
            label=f"SimFL, joint, {private.TRUST[colluding]}",
        )
    for method, label in ((ALL_IN, "ALL-IN (pooled), no noise"), ("SOLO", "SOLO (alone), no noise")):
        if level := private.auc(entries, data=name, method=method):
            axis.axhline(level.mean, color=COLOURS[method], linestyle=":", label=label)
    axis.set_title(name, fontsize=9)
