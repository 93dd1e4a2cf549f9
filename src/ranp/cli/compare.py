"""`ranp compare`: methods side by side at the same cost."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ranp.cli._cells import CellOptions, cell_progress, resume_hint
from ranp.cli._common import command_line
from ranp.cli._networks import parse_shape
from ranp.cli._options import Coupling, Output, grouped
from ranp.cli._training import TrainingOptions, load_factory
from ranp.user_code import load_function

if TYPE_CHECKING:
    from ranp.training.config import Config
    from ranp.trials.store import Cell

DEFAULT_METHODS = "full,thin,ranp-f,weighted,random,magnitude"


@grouped
def command(
    training: TrainingOptions,
    cells: CellOptions,
    output: Output,
    methods: Annotated[
        str,
        typer.Option(
            help="Comma-separated names from `ranp methods`, and full; with --train also race."
        ),
    ] = DEFAULT_METHODS,
    budget: Annotated[
        list[str] | None,
        typer.Option(
            help="flops=10% (of the full network), flops=20G, gflops=X, params=1e6, "
            "activations=200MB; may be repeated. By default flops=10%."
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Number of runs of each method.")] = 3,
    coupling: Annotated[
        Coupling | None,
        typer.Option(help="Rule for tied channels, with --train; by default as in prune."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Directory for results and runs; by default below out/.")
    ] = None,
) -> None:
    """Compare methods at the same cost: train with several seeds, and test the differences.

    You can stop it at any time; the same command continues. Start it several times, and the
    processes share the work.
    """
    from ranp.experiments.evaluation import write_comparison
    from ranp.report.comparison_tables import terminal

    training.check()
    names = [name.strip() for name in methods.split(",")]
    budgets = budget or ["flops=10%"]
    if training.train is not None:
        out = out or Path("out") / f"compare-{training.train.partition(':')[0]}"
        output.say(f"Comparison: {out}")
        result = _compare_loop(training, names, budgets, seeds, coupling, out, cells, output)
    else:
        config = training.config()
        out = out or Path("out") / f"compare-{config.recipe}{'-smoke' if training.smoke else ''}"
        result = _compare_recipe(training, config, names, budgets, seeds, out, cells, output)
    files = write_comparison(result, out, command_line())
    output.show({"files": [str(path) for path in files], **result}, terminal(result))
    output.say(f"Written: {files[0]} and {', '.join(path.name for path in files[1:])}")
    for page in (path for path in files if path.suffix == ".html"):  # none without results
        output.say(f"Next: open {page} in a browser")


def _compare_loop(
    training: TrainingOptions,
    names: list[str],
    budgets: list[str],
    seeds: int,
    coupling: Coupling | None,
    out: Path,
    cells: CellOptions,
    output: Output,
) -> dict[str, Any]:
    from ranp.experiments.loop_runs import compare
    from ranp.resources.budgets import split_budgets

    with resume_hint():
        comparison = compare(
            load_factory(training.network),
            load_function(str(training.train), "training function"),
            methods=names,
            budget=[split_budgets([text]) for text in budgets],
            seeds=seeds,
            **training.scored(),
            example_input=parse_shape(training.input_shape),
            coupling=coupling,
            floor=training.floor,
            length=training.length,
            cost=training.cost,
            out=out,
            jobs=cells.parse_jobs(),
            recompute=cells.recompute,
            tell=output.say,
        )
    return dict(comparison.result)


def _compare_recipe(
    training: TrainingOptions,
    config: Config,
    names: list[str],
    budgets: list[str],
    seeds: int,
    out: Path,
    cells: CellOptions,
    output: Output,
) -> dict[str, Any]:
    from ranp.experiments.cells import TrainingCells
    from ranp.experiments.evaluation import evaluate
    from ranp.experiments.jobs import complete_cells
    from ranp.experiments.matching import checked_methods, parse_budget_text
    from ranp.experiments.recipe_runs import make_recipe_runs, seconds_left

    # All that can be refused at once is, before anything is written.
    jobs = cells.parse_jobs()
    names = list(checked_methods(names))
    for text in budgets:
        parse_budget_text(text)
    factory = load_factory(training.network)
    store = cells.open_store(out / "cells", TrainingCells)
    training_cells = TrainingCells(store, training.directory, factory)
    runs = make_recipe_runs(training_cells, config, names, budgets, seeds)
    output.say(f"Comparison: {out}")

    def describe(cell: Cell, done: int, total: int) -> tuple[str, str]:
        left = seconds_left(runs, store)
        rest = "" if left is None else f", about {_duration(left)} left"
        about = f"{_name(cell)}{rest}"
        return about, f"run {done + 1} of {total}: {about}"

    with cell_progress(output, "runs", describe) as on_cell:
        complete_cells(store, runs.cells(), training_cells, on_cell, jobs)
    return evaluate(runs, store)


def _name(cell: Cell) -> str:
    config, budget = cell["config"], cell["budget"]
    seed = f"seed {config['seed']}"
    if budget is None:
        return f"full, {seed}"
    return f"{config['pruning']['method']} at {budget['resource']} {budget['amount']:.4g}, {seed}"


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"
