"""From what cells came to, to rows beside the paper's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from ranp.experiments.paper import RESOURCES, printed
from ranp.experiments.reproduce.scales import Pair
from ranp.experiments.reproduce.study import Study
from ranp.experiments.store import Cell
from ranp.report.table import Column, ComparisonTable, Figure, Row

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
"""What the paper calls the methods."""

TIMES = (Column("cpu_seconds", "CPU s", digits=1), Column("seconds", "Seconds", digits=1))
"""How long training took; a run has one of the two."""

_TITLES = {"param_mb": "Param (MB)", "gflops": "GFLOPs", "memory_mb": "Memory (MB)"}


class Draw(Protocol):
    """Draws a picture; the ending of the name says which format."""

    def __call__(self, path: Path) -> None:
        """To a file."""


@dataclass(frozen=True)
class Outcome:
    """What an experiment comes to.

    Attributes:
        table: Our figures beside the paper's.
        picture: Draws the figure, where the paper has one.
    """

    table: ComparisonTable
    picture: Draw | None = None


@dataclass(frozen=True)
class Made:
    """The cells of one row, by seed.

    Attributes:
        choices: Resources.
        trainings: The same networks, trained; empty where nothing is.
    """

    choices: tuple[Cell, ...]
    trainings: tuple[Cell, ...] = field(default=())

    @property
    def cells(self) -> list[Cell]:
        """All of them."""
        return [*self.choices, *self.trainings]


def columns(study: Study, pairs: Sequence[Pair], *, sparsity: bool = True) -> list[Column]:
    """Sparsity, resources, and the metrics and times of some pairs.

    Scaled down, resources are shares of the full network, which can be compared with the paper's.
    """
    result = [Column("sparsity", "Sparsity (%)", points=True)] if sparsity else []
    for key in RESOURCES:
        if study.at_paper_size:
            result.append(Column(key, _TITLES[key]))
        else:
            heading = f"{_TITLES[key].partition(' ')[0]} (% of full)"
            result.append(Column(f"{key}_share", heading, digits=1, points=True))
    metrics = {key: title for pair in pairs for key, title in pair.metrics.items()}
    result += [Column(key, f"{title} (%)", points=True) for key, title in metrics.items()]
    return [*result, *TIMES] if metrics else result


def resource_figures(
    study: Study, pair: Pair, made: Made, row: Mapping[str, Any] | None, *, exact: bool = False
) -> dict[str, Figure]:
    """Parameters, FLOPs and memory, ours and a printed row's."""
    results = [study.result(cell) for cell in made.choices]
    return cost_figures(study, pair, results, row, exact=exact)


def cost_figures(
    study: Study,
    pair: Pair,
    results: Sequence[Mapping[str, Any]],
    row: Mapping[str, Any] | None,
    *,
    exact: bool = False,
) -> dict[str, Figure]:
    """The same, of what networks cost and what the full one does: `costs` and `full`."""
    figures = {}
    for key in RESOURCES:
        ours = tuple(result["costs"][key] for result in results)
        value = None if row is None else row.get(key)
        if study.at_paper_size:
            figures[key] = Figure(ours, value, exact=exact and value is not None)
            continue
        shares = tuple(100 * result["costs"][key] / result["full"][key] for result in results)
        whole = printed()["full"].get(pair.name, {}).get(key)
        share = None if value is None or whole is None else 100 * value / whole
        figures[f"{key}_share"] = Figure(shares, share)
        figures[key] = Figure(ours)
    return figures


def sparsity_figure(study: Study, made: Made, row: Mapping[str, Any] | None) -> Figure:
    """Ours and a printed row's, in per cent."""
    ours = tuple(100 * study.result(cell).get("sparsity", 0.0) for cell in made.choices)
    value = None if row is None or "sparsity" not in row else 100 * row["sparsity"]
    return Figure(ours, value)


def metric_figures(
    study: Study, pair: Pair, made: Made, row: Mapping[str, Any] | None
) -> dict[str, Figure]:
    """The paper's metrics of trained networks, in per cent; none where nothing is trained.

    As in the paper a metric is the mean over the last epochs; of a single seed their deviation is
    given, of several that of the seeds.
    """
    if not made.trainings:
        return {}
    trained = [result["metrics"] for result in _trained(study, made)]
    figures = {}
    for key in pair.metrics:
        value = ((row or {}).get("metrics") or {}).get(key, (None, None))
        figures[key] = Figure(
            tuple(100 * metrics[key]["mean"] for metrics in trained),
            value[0],
            # Of a single epoch there is none.
            spread=100 * trained[0][key]["std"] or None if len(trained) == 1 else None,
            printed_spread=value[1],
        )
    return figures


def time_figures(study: Study, made: Made) -> dict[str, Figure]:
    """How long training and validation took: CPU time does not wait for others on the machine."""
    results = _trained(study, made)
    if not results:
        return {}
    key = "cpu_seconds" if {result["device"] for result in results} == {"cpu"} else "seconds"
    return {key: Figure(tuple(result[key] for result in results))}


def _trained(study: Study, made: Made) -> list[dict[str, Any]]:
    """What the runs came to that did not diverge."""
    results = [study.result(cell) for cell in made.trainings]
    return [result for result in results if result["outcome"] == "trained"]


def row_of(
    study: Study,
    pair: Pair,
    label: str,
    made: Made,
    row: Mapping[str, Any] | None,
    *,
    exact: bool = False,
) -> Row:
    """A row of sparsity, resources, metrics and time beside the printed one.

    Args:
        study: Where the cells are.
        pair: What the row is of.
        label: Of the row.
        made: Its cells.
        row: The printed one.
        exact: Whether its resources depend neither on data nor on chance.
    """
    return Row(
        group=pair.title,
        label=label,
        figures={
            "sparsity": sparsity_figure(study, made, row),
            **resource_figures(study, pair, made, row, exact=exact),
            **metric_figures(study, pair, made, row),
            **time_figures(study, made),
        },
        note=_note(study, made, row),
    )


def _note(study: Study, made: Made, row: Mapping[str, Any] | None) -> str | None:
    notes = []
    if row is not None and "note" in row:
        text = str(row["note"])
        notes.append(f"{text[0].upper()}{text[1:]}.")
    emptied = {
        layer: None for cell in made.choices for layer in study.result(cell).get("emptied", ())
    }
    if emptied:
        layers = ", ".join(f"`{layer}`" for layer in list(emptied)[:3])
        more = f" and {len(emptied) - 3} more" if len(emptied) > 3 else ""
        notes.append(
            f"At this sparsity {layers}{more} would lose all neurons, and keep one each: it is "
            "beyond the largest feasible sparsity."
        )
    failed = [study.result(cell)["outcome"] for cell in made.trainings]
    if bad := sum(outcome != "trained" for outcome in failed):
        notes.append(f"{bad} of {len(failed)} runs diverged and are left out.")
    return " ".join(notes) or None


def about_data(study: Study, pairs: Sequence[Pair], *, one_seed: bool = False) -> tuple[str, ...]:
    """How the figures came about.

    Args:
        study: Scale, seeds and data.
        pairs: What is shown.
        one_seed: Whether seed 0 alone is, as in pictures of single networks.
    """
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
    trained = "" if not study.resources_only else " Nothing was trained."
    return (
        f"Each figure is `ours / paper's (difference)`; {seeds}. {resources} {source}{trained}",
    )


def _size(study: Study, pair: Pair) -> str:
    config = study.config(pair)
    size = config.pruning.size or config.data.size
    return f"16 x {size}²" if config.data.kind == "ucf101" else f"{size}³"
