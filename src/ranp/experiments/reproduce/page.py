"""Pages of the paper's tables and figures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ranp.experiments.reproduce.scales import PAIRS
from ranp.experiments.reproduce.study import Study
from ranp.experiments.statistics import summarise
from ranp.recording.record import environment
from ranp.report.comparison import DRAWN, Compared, Comparison
from ranp.report.reproduction import Reproduction
from ranp.report.table import Column, ComparisonTable, Figure, Group, Row
from ranp.trials.store import Cell

_METRICS = frozenset(key for pair in PAIRS.values() for key in pair.metrics)
_BOUNDS = (0.0, 100.0)  # metrics are in per cent


def make_page(
    name: str,
    study: Study,
    cells: Sequence[Cell],
    table: ComparisonTable,
    pictures: Sequence[Path] = (),
    command: str | None = None,
) -> Reproduction:
    """Return the content of the page of a table or figure, from its complete cells."""
    drawn = {
        group.title: comparison
        for group in table.groups()
        if (comparison := compare_group(table, group, study.seeds)) is not None
    }
    # Of scoring, random selection and training; a figure may show one.
    found = (each["config"]["seed"] if "config" in each else each.get("seed") for each in cells)
    seeds = sorted({seed for seed in found if seed is not None})
    return Reproduction(
        name=name,
        table=table,
        facts=[
            ("scale", study.scale),
            ("seed" if len(seeds) == 1 else "seeds", ", ".join(map(str, seeds)) or "none"),
            ("data", ", ".join(study.data) or "generated"),
            ("trained", "yes" if drawn else "nothing"),
        ],
        drawn=drawn,
        pictures=pictures,
        command=command,
        about=[
            ("Cells", [("number", str(len(cells))), *study.versions(cells).items()]),
            ("This page", list(environment().items())),
        ],
    )


def compare_group(table: ComparisonTable, group: Group, seeds: int) -> Comparison | None:
    """Return the networks of a group in the plane of accuracy and costs.

    Accuracy is the first of the metrics. Intervals are those of the mean over seeds; a single seed
    has the deviation over its last epochs, where there are several. At the paper's size the
    paper's networks stand beside ours. If none of the rows was trained, there is nothing to draw.
    """
    metric = _main_metric(group)
    if metric is None:
        return None
    costs = [column.key for column in group.columns if column.key in DRAWN]
    reached = [(row, row.figures.get(metric.key, Figure())) for row in group.rows]
    ours = [_ours(row, accuracy, costs, seeds) for row, accuracy in reached]
    paper = [_printed(row, accuracy, costs) for row, accuracy in reached]
    networks = [each for each in (*ours, *(paper if table.checked else ())) if each is not None]
    return Comparison(
        title=group.title,
        metric=metric.title,
        interval=(
            f"95 % t-interval of the mean over {seeds} seeds"
            if seeds > 1
            else "standard deviation over the last epochs"
        ),
        networks=networks,
        bounds=_BOUNDS,
    )


def _main_metric(group: Group) -> Column | None:
    """Return the first metric that was measured; None if nothing was trained."""
    for column in group.columns:
        figures = (row.figures.get(column.key) for row in group.rows)
        if column.key in _METRICS and any(figure and figure.ours for figure in figures):
            return column
    return None


def _ours(row: Row, accuracy: Figure, costs: Sequence[str], seeds: int) -> Compared | None:
    if accuracy.mean is None:
        return None
    interval = None
    if seeds > 1:
        summary = summarise(accuracy.ours)
        if summary.low is not None and summary.high is not None:
            interval = summary.low, summary.high
    elif accuracy.spread is not None:
        interval = accuracy.mean - accuracy.spread, accuracy.mean + accuracy.spread
    means = {key: row.figures[key].mean for key in costs if key in row.figures}
    return Compared(
        name=row.label,
        accuracy=accuracy.mean,
        interval=interval,
        costs={key: mean for key, mean in means.items() if mean is not None},
        runs=len(accuracy.ours),
        series=row.series,
        group="ours",
    )


def _printed(row: Row, accuracy: Figure, costs: Sequence[str]) -> Compared | None:
    """Return the paper's network: its accuracy against its costs, without an interval."""
    if accuracy.printed is None:
        return None
    printed = {key: row.figures[key].printed for key in costs if key in row.figures}
    return Compared(
        name=f"{row.label}, the paper's",
        accuracy=accuracy.printed,
        costs={key: value for key, value in printed.items() if value is not None},
        series=row.series or row.label,
        group="the paper's",
    )
