"""Figure 4: resources and accuracy against sparsity, with and without reweighting."""

from __future__ import annotations

from pathlib import Path

from ranp.experiments.paper import capability, printed
from ranp.experiments.reproduce import table_capability
from ranp.experiments.reproduce.choices import Amount
from ranp.experiments.reproduce.rows import (
    TIMES,
    Made,
    Outcome,
    about_data,
    metric_figures,
    sparsity_figure,
    time_figures,
)
from ranp.experiments.reproduce.scales import FOUR, Pair
from ranp.experiments.reproduce.study import Study
from ranp.experiments.store import Cell
from ranp.report.paper_figures import Sweep, draw_sparsity
from ranp.report.table import Column, ComparisonTable, Figure, Row

_METHODS = {"ranp-f": "with reweighting", "vanilla": "without"}
_RESOURCES = {"gflops": "GFLOPs", "memory_mb": "memory"}


def shares(study: Study) -> tuple[float, ...]:
    """At which shares of its largest sparsity a method is looked at."""
    if study.scale == "smoke":
        return (0.5, 1.0)
    return tuple(eighth / 8 for eighth in range(1, 9))


def _trained(study: Study, share: float) -> bool:
    return study.scale == "smoke" or share in (0.25, 0.5, 0.75, 1.0)


def made(study: Study, pair: Pair, method: str, share: float) -> Made:
    """The cells of one point of a curve."""
    amount, seeds = Amount(of_largest=share), study.each_seed
    plans = [study.choice(pair, method, amount, seed) for seed in seeds]
    trained = [study.training(pair, plan, seed) for seed, plan in enumerate(plans)]
    wanted = study.trains(pair) and _trained(study, share)
    return Made(tuple(plans), tuple(trained) if wanted else ())


def cells(study: Study) -> list[Cell]:
    """All points' cells."""
    found: list[Cell] = []
    for pair in study.pairs(FOUR):
        found += table_capability.made(study, pair, "full").cells
        for method in _METHODS:
            for share in shares(study):
                found += made(study, pair, method, share).cells
    return found


def show(study: Study) -> Outcome:
    """The figure, and a table of its points."""
    pairs, rows = study.pairs(FOUR), []
    panels: dict[str, Sweep] = {}
    for pair in pairs:
        panels[pair.title] = _sweep(study, pair)
        for method, label in _METHODS.items():
            for share in shares(study):
                point = made(study, pair, method, share)
                largest = printed()["data_dependent"][pair.name]["max_sparsity"][method]
                row = {"sparsity": largest} if share == 1 and study.at_paper_size else None
                figures = {
                    "sparsity": sparsity_figure(study, point, row),
                    **{f"{k}_share": f for k, f in _shares_of_full(study, point).items()},
                    **metric_figures(study, pair, point, None),
                    **time_figures(study, point),
                }
                name = "largest" if share == 1 else f"{share:.3g} of the largest"
                rows.append(Row(pair.title, f"{label}: {name}", figures, series=label))

    def draw(path: Path) -> None:
        draw_sparsity(path, panels)

    metrics = {key: title for pair in pairs for key, title in pair.metrics.items()}
    return Outcome(
        ComparisonTable(
            "Figure 4: resources and accuracy against neuron sparsity",
            (
                Column("sparsity", "Sparsity (%)", points=True),
                *(
                    Column(f"{k}_share", f"{title} (% of full)", 1)
                    for k, title in _RESOURCES.items()
                ),
                *(Column(key, f"{title} (%)", points=True) for key, title in metrics.items()),
                *TIMES,
            ),
            tuple(rows),
            (
                *about_data(study, pairs),
                "With reweighting: RANP-f; without: vanilla NP. Sparsities are shares of the "
                "largest one that leaves a neuron in every layer.",
            ),
        ),
        draw,
    )


def _shares_of_full(study: Study, point: Made) -> dict[str, Figure]:
    results = [study.result(cell) for cell in point.choices]
    return {
        key: Figure(tuple(100 * result["costs"][key] / result["full"][key] for result in results))
        for key in _RESOURCES
    }


def _sweep(study: Study, pair: Pair) -> Sweep:
    resources: dict[str, dict[str, list[tuple[float, float]]]] = {}
    accuracy: dict[str, list[tuple[float, float]]] = {}
    metric = next(iter(pair.metrics))
    full = table_capability.made(study, pair, "full")
    start = metric_figures(study, pair, full, None)
    for method, label in _METHODS.items():
        points = {share: made(study, pair, method, share) for share in shares(study)}
        resources[label] = {title: [(0.0, 100.0)] for title in _RESOURCES.values()}
        if start and (mean := start[metric].mean) is not None:
            accuracy[label] = [(0.0, mean)]
        for point in points.values():
            sparsity = (sparsity_figure(study, point, None).mean or 0.0) / 100
            for key, figure in _shares_of_full(study, point).items():
                resources[label][_RESOURCES[key]].append((sparsity, figure.mean or 0.0))
            reached = metric_figures(study, pair, point, None)
            if reached and (mean := reached[metric].mean) is not None:
                accuracy.setdefault(label, []).append((sparsity, mean))
    return Sweep(resources, _printed_points(study, pair), accuracy, pair.metrics[metric])


def _printed_points(study: Study, pair: Pair) -> dict[str, dict[str, list[tuple[float, float]]]]:
    """What the paper's tables say of these curves."""
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
