"""Rows of the paper's tables: declared once, with the cells and the printed figures of each.

What must be computed follows from the rows, and so does the table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ranp.errors import first_of
from ranp.experiments.matching import distinct
from ranp.experiments.paper import RESOURCES, printed
from ranp.experiments.reproduce.choices import Amount
from ranp.experiments.reproduce.scales import Pair
from ranp.experiments.reproduce.study import Study
from ranp.report.table import Column, ComparisonTable, Figure, Row
from ranp.trials.store import Cell

LABELS = {
    "full": "Full",
    "snip": "SNIP NP",
    "random": "Random NP",
    "layerwise": "Layer-wise NP",
    "vanilla": "Vanilla NP",
    "weighted": "Weighted NP",
    "ranp-m": "RANP-m",
    "ranp-f": "RANP-f",
}
"""Names of the methods in the paper, in the order of its tables."""

TIMES = (Column("cpu_seconds", "CPU s", digits=1), Column("seconds", "Seconds", digits=1))
"""Training time; a run has one of the two."""

_TITLES = {"param_mb": "Param (MB)", "gflops": "GFLOPs", "memory_mb": "Memory (MB)"}


@dataclass(frozen=True)
class RowCells:
    """The cells of one row, by seed: resources of its networks, and their training runs, if any."""

    choices: tuple[Cell, ...]
    trainings: tuple[Cell, ...] = ()

    @property
    def all(self) -> tuple[Cell, ...]:
        """All of them."""
        return (*self.choices, *self.trainings)


def make_row_cells(
    study: Study,
    pair: Pair,
    method: str,
    amount: Amount | None = None,
    *,
    weights: str = "fresh",
    batch: int | None = None,
    one_draw: bool = False,
    train: bool = True,
) -> RowCells:
    """Return the cells of a method's networks, one for every seed.

    Args:
        study: Scale, seeds and data.
        pair: Network and data set.
        method: Name of the pruning method, or "full".
        amount: How much is pruned; None for the full network.
        weights: Initialization of the network that is scored.
        batch: Batch size of the training step whose memory is predicted, if any.
        one_draw: Whether all seeds train the network that seed 0 draws.
        train: Whether the networks are trained, if the study trains at all.
    """
    plans: list[Cell | None] = [None] * study.seeds
    choices = [study.full(pair, batch)]
    if amount is not None:
        options: dict[str, Any] = {"weights": weights, "batch": batch}
        seeds = (0 if one_draw else seed for seed in study.each_seed)
        choices = [study.choice(pair, method, amount, seed, **options) for seed in seeds]
        plans = list(choices)
    trainings = [study.training(pair, plan, seed) for seed, plan in enumerate(plans)]
    trained = train and study.trains(pair)
    return RowCells(tuple(distinct(choices)), tuple(trainings) if trained else ())


def paper_figures(study: Study, row: TableRow) -> dict[str, Figure]:
    """Return sparsity, resources, metrics and time of a row beside the printed ones."""
    return {
        "sparsity": sparsity_figure(study, row),
        **cost_figures(study, row, [study.result(cell) for cell in row.cells.choices]),
        **metric_figures(study, row),
        **time_figures(study, row.cells),
    }


@dataclass(frozen=True)
class TableRow:
    """A row of a table, before anything of it is computed.

    Attributes:
        pair: Network and data set.
        label: Heading of the row.
        cells: Its networks.
        printed: What the paper prints of it.
        exact: Whether its resources depend neither on data nor on chance.
        figures: Makes its figures from complete cells.
        parts: Further cells that `figures` or the picture reads.
        group: Heading of the rows it belongs to; by default the pair's.
        series: The curve that it is a point of, if it is.
    """

    pair: Pair
    label: str
    cells: RowCells
    printed: Mapping[str, Any] = field(default_factory=dict)
    exact: bool = False
    figures: Callable[[Study, TableRow], dict[str, Figure]] = paper_figures
    parts: tuple[Cell, ...] = ()
    group: str | None = None
    series: str | None = None

    def show(self, study: Study) -> Row:
        """Return the row of the table."""
        return Row(
            group=self.group or self.pair.title,
            label=self.label,
            figures=self.figures(study, self),
            note=_note(study, self),
            series=self.series,
        )


@dataclass(frozen=True)
class Exhibit:
    """A table or figure of the paper: its cells, and what makes the table from complete ones.

    `draw(table)` returns the figure, of matplotlib; None for tables.
    """

    cells: Sequence[Cell]
    table: Callable[[], ComparisonTable]
    draw: Callable[[ComparisonTable], Any] | None = None


def make_exhibit(
    study: Study,
    title: str,
    rows: Sequence[TableRow],
    pairs: Sequence[Pair],
    columns: Iterable[Column],
    *,
    about: str | None = None,
    draw: Callable[[ComparisonTable], Any] | None = None,
) -> Exhibit:
    """Return the table of some rows, and the figure if the paper has one.

    A reader is told scale and data of the pairs, and what else is to be said about it.
    """
    cells = [cell for row in rows for cell in (*row.cells.all, *row.parts)]
    paragraphs = [about_data(study, pairs), *([about] if about else [])]

    def table() -> ComparisonTable:
        return _make_table(study, title, [row.show(study) for row in rows], columns, paragraphs)

    return Exhibit(cells, table, draw)


def make_layer_exhibit(
    study: Study,
    title: str,
    cells: Mapping[Pair, Mapping[str, Cell]],
    figures: Callable[[Mapping[str, Mapping[str, Any]]], Mapping[str, Sequence[float]]],
    columns: Iterable[Column],
    about: Iterable[str],
    draw: Callable[[ComparisonTable], Any],
) -> Exhibit:
    """Return a figure of seed 0, and a table with a row for every layer.

    `figures` takes the results of a pair by method, and returns a figure for every layer by column.
    """

    def table() -> ComparisonTable:
        rows = []
        for pair, by_method in cells.items():
            found = {method: study.result(cell) for method, cell in by_method.items()}
            layers, shown = next(iter(found.values()))["layers"], figures(found)
            for i, layer in enumerate(layers):
                of_layer = {key: Figure((values[i],)) for key, values in shown.items()}
                rows.append(Row(pair.title, f"{i + 1}. `{layer}`", of_layer))
        paragraphs = [about_data(study, list(cells), one_seed=True), *about]
        return _make_table(study, title, rows, columns, paragraphs)

    return Exhibit([c for by_method in cells.values() for c in by_method.values()], table, draw)


def _make_table(
    study: Study, title: str, rows: Iterable[Row], columns: Iterable[Column], about: Iterable[str]
) -> ComparisonTable:
    """Return a table beside the paper's; figures are checked if sizes are the paper's."""
    return ComparisonTable(
        title,
        tuple(columns),
        tuple(rows),
        tuple(about),
        printed()["tolerance"],
        checked=study.at_paper_size,
    )


def make_columns(
    study: Study, pairs: Sequence[Pair], *, sparsity: bool = True, resources: bool = True
) -> list[Column]:
    """Return columns of sparsity, resources, and the metrics and times of some pairs.

    Scaled down, resources are shares of the full network, which can be compared with the paper's.
    """
    result = [Column("sparsity", "Sparsity (%)", points=True)] if sparsity else []
    for key in RESOURCES if resources else ():
        if study.at_paper_size:
            result.append(Column(key, _TITLES[key]))
        else:
            heading = f"{_TITLES[key].partition(' ')[0]} (% of full)"
            result.append(Column(f"{key}_share", heading, digits=1, points=True))
    metrics = {key: title for pair in pairs for key, title in pair.metrics.items()}
    result += [Column(key, f"{title} (%)", points=True) for key, title in metrics.items()]
    return [*result, *TIMES] if metrics else result


def result_figure(study: Study, cells: Sequence[Cell], key: str, factor: float = 1.0) -> Figure:
    """Return one value of every cell's result, times a factor."""
    return Figure(tuple(factor * study.result(cell).get(key, 0.0) for cell in cells))


def sparsity_figure(study: Study, row: TableRow) -> Figure:
    """Return our sparsity and the printed one, in per cent."""
    ours = result_figure(study, row.cells.choices, "sparsity", 100).ours
    value = row.printed.get("sparsity")
    return Figure(ours, None if value is None else 100 * value)


def cost_figures(
    study: Study, row: TableRow, results: Sequence[Mapping[str, Any]]
) -> dict[str, Figure]:
    """Return parameters, FLOPs and memory beside the printed ones.

    At the paper's size figures are compared, else shares of the full network. Each of the results
    says what a network costs (`costs`), and the full one (`full`).
    """
    figures = {}
    for key in RESOURCES:
        ours = tuple(result["costs"][key] for result in results)
        value = row.printed.get(key)
        if study.at_paper_size:
            figures[key] = Figure(ours, value, exact=row.exact and value is not None)
            continue
        shares = tuple(100 * result["costs"][key] / result["full"][key] for result in results)
        whole = printed()["full"].get(row.pair.name, {}).get(key)
        share = None if value is None or whole is None else 100 * value / whole
        figures[f"{key}_share"] = Figure(shares, share)
        figures[key] = Figure(ours)
    return figures


def metric_figures(study: Study, row: TableRow) -> dict[str, Figure]:
    """Return the paper's metrics of trained networks, in per cent; none if nothing is trained.

    As in the paper a metric is the mean over the last epochs; of a single seed their deviation is
    given, of several that of the seeds.
    """
    if not row.cells.trainings:
        return {}
    trained = [result["metrics"] for result in _trained(study, row.cells)]
    figures = {}
    for key in row.pair.metrics:
        value = (row.printed.get("metrics") or {}).get(key, (None, None))
        figures[key] = Figure(
            tuple(100 * metrics[key]["mean"] for metrics in trained),
            value[0],
            # A single epoch has none.
            spread=100 * trained[0][key]["std"] or None if len(trained) == 1 else None,
            printed_spread=value[1],
        )
    return figures


def time_figures(study: Study, cells: RowCells) -> dict[str, Figure]:
    """Return the time of training and validation: on a CPU, that of this process alone."""
    results = _trained(study, cells)
    if not results:
        return {}
    key = "cpu_seconds" if {result["device"] for result in results} == {"cpu"} else "seconds"
    return {key: Figure(tuple(result[key] for result in results))}


def _trained(study: Study, cells: RowCells) -> list[dict[str, Any]]:
    """Return the results of the runs that did not diverge."""
    results = [study.result(cell) for cell in cells.trainings]
    return [result for result in results if result["outcome"] == "trained"]


def _note(study: Study, row: TableRow) -> str | None:
    notes = []
    if "note" in row.printed:
        text = str(row.printed["note"])
        notes.append(f"{text[0].upper()}{text[1:]}.")
    emptied = {
        layer: None for cell in row.cells.choices for layer in study.result(cell).get("emptied", ())
    }
    if emptied:
        layers = first_of([f"`{layer}`" for layer in emptied], 3)
        notes.append(
            f"At this sparsity {layers} would lose all neurons, and keep one each: it is "
            "beyond the largest feasible sparsity."
        )
    runs = len(row.cells.trainings)
    if any(map(study.store.is_outdated, (*row.cells.all, *row.parts))):
        notes.append("Computed by another version of the code.")
    if bad := runs - len(_trained(study, row.cells)):
        notes.append(f"{bad} of {runs} runs diverged and are left out.")
    return " ".join(notes) or None


def about_data(study: Study, pairs: Sequence[Pair], *, one_seed: bool = False) -> str:
    """Return how the figures of some pairs were computed; only seed 0 is shown with `one_seed`."""
    seeds = "one seed" if one_seed or study.seeds == 1 else f"{study.seeds} seeds"
    if study.data:
        source = "Scored with the training sets."
    else:
        samples = ", ".join(
            f"{pair.settings[study.scale].samples} for {pair.title} at {_size(study, pair)}"
            for pair in pairs
        )
        source = f"Scored with generated samples, one per batch: {samples}."
    resources = (
        "Resources: one sample at the paper's input size, by the paper's counting."
        if study.at_paper_size
        else f"Scale `{study.scale}`: smaller networks and inputs, so resources are shares of the "
        "full network."
    )
    trained = " Nothing was trained." if study.resources_only else ""
    return f"Each figure is `ours / paper's (difference)`; {seeds}. {resources} {source}{trained}"


def _size(study: Study, pair: Pair) -> str:
    config = study.config(pair)
    size, frames = config.scoring_size, config.data.dataset.frames
    return f"{frames} x {size}²" if frames else f"{size}³"
