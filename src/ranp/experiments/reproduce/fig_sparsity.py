"""Figure 4: resources and accuracy against sparsity, with and without reweighting."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ranp.experiments.paper import capability, printed
from ranp.experiments.reproduce import table_capability, tables
from ranp.experiments.reproduce.choices import Amount
from ranp.experiments.reproduce.scales import FOUR, Pair
from ranp.experiments.reproduce.study import Study
from ranp.report.paper_figures import Sweep, draw_sparsity
from ranp.report.table import Column, ComparisonTable, Figure, Row

_METHODS = {"ranp-f": "with reweighting", "vanilla": "without"}
_RESOURCES = {"gflops": "GFLOPs", "memory_mb": "memory"}


def declare(study: Study, name: str) -> tables.Exhibit:
    """Return the figure, and a table of its points."""
    pairs = study.pairs(FOUR)
    full = [table_capability.make_row(study, pair, "full") for pair in pairs]

    def draw(table: ComparisonTable) -> Any:
        drawn = zip(table.groups(), full, strict=True)
        return draw_sparsity({group.title: _sweep(study, row, group.rows) for group, row in drawn})

    sparsity, *metrics = tables.make_columns(study, pairs, resources=False)
    shares = [Column(f"{k}_share", f"{title} (% of full)", 1) for k, title in _RESOURCES.items()]
    return tables.make_exhibit(
        study,
        "Figure 4: resources and accuracy against neuron sparsity",
        [row for each in full for row in _rows(study, each)],
        pairs,
        [sparsity, *shares, *metrics],
        about="With reweighting: RANP-f; without: vanilla NP. Sparsities are shares of the "
        "largest one that leaves a neuron in every layer.",
        draw=draw,
    )


def _rows(study: Study, full: tables.TableRow) -> Iterator[tables.TableRow]:
    """Yield the points of both curves, at shares of the largest feasible sparsity."""
    pair, smoke = full.pair, study.scale == "smoke"
    for method, label in _METHODS.items():
        largest = printed()["data_dependent"][pair.name]["max_sparsity"][method]
        for share in (0.5, 1.0) if smoke else [eighth / 8 for eighth in range(1, 9)]:
            train = smoke or share in (0.25, 0.5, 0.75, 1.0)
            yield tables.TableRow(
                pair,
                f"{label}: " + ("largest" if share == 1 else f"{share:.3g} of the largest"),
                tables.make_row_cells(study, pair, method, Amount(of_largest=share), train=train),
                {"sparsity": largest} if share == 1 and study.at_paper_size else {},
                figures=_figures,
                parts=full.cells.all,
                series=label,
            )


def _figures(study: Study, row: tables.TableRow) -> dict[str, Figure]:
    results = [study.result(cell) for cell in row.cells.choices]
    shares = {
        f"{key}_share": Figure(tuple(100 * r["costs"][key] / r["full"][key] for r in results))
        for key in _RESOURCES
    }
    return {
        "sparsity": tables.sparsity_figure(study, row),
        **shares,
        **tables.metric_figures(study, row),
        **tables.time_figures(study, row.cells),
    }


def _sweep(study: Study, full: tables.TableRow, rows: Sequence[Row]) -> Sweep:
    """Return both curves of a network; their first point is the full one."""
    metric, name = next(iter(full.pair.metrics.items()))
    whole = {f"{key}_share": Figure((100.0,)) for key in _RESOURCES}
    start = {"sparsity": Figure((0.0,)), **whole, **tables.metric_figures(study, full)}
    resources, accuracy = {}, {}
    for label in _METHODS.values():
        points = [start, *(row.figures for row in rows if row.series == label)]
        resources[label] = {title: _curve(points, f"{k}_share") for k, title in _RESOURCES.items()}
        if reached := _curve(points, metric):
            accuracy[label] = reached
    return Sweep(resources, _printed_points(study, full.pair), accuracy, name)


def _curve(points: Iterable[Mapping[str, Figure]], key: str) -> list[tuple[float, float]]:
    """Return (sparsity, figure) of the points that have the figure."""
    found = [
        ((each["sparsity"].mean or 0.0) / 100, each.get(key, Figure()).mean) for each in points
    ]
    return [(x, y) for x, y in found if y is not None]


def _printed_points(study: Study, pair: Pair) -> dict[str, dict[str, list[tuple[float, float]]]]:
    """Return what the paper's tables say of these curves."""
    if not study.at_paper_size:
        return {}
    paper = capability(pair.name)
    return {
        label: {
            title: [(paper[method]["sparsity"], 100 * paper[method][key] / paper["full"][key])]
            for key, title in _RESOURCES.items()
        }
        for method, label in _METHODS.items()
    }
