"""`ranp compare`: methods side by side at the same cost."""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ranp.cli._cells import (
    JobsOption,
    RecomputeOption,
    cell_progress,
    going_on,
    open_store,
)
from ranp.cli._common import parse_shape, say, show, show_json
from ranp.cli._options import FloorOption, InputOption, JsonOption, QuietOption, grouped
from ranp.cli.race import CostOption, LossOption, score_source
from ranp.cli.train import FactoryOption
from ranp.user_code import load_object

if TYPE_CHECKING:
    from ranp.experiments.jobs import Jobs
    from ranp.training.config import Config
    from ranp.trials.store import Cell

DEFAULT_METHODS = "full,thin,ranp-f,weighted,random,magnitude"


@dataclass(frozen=True)
class LoopOptions:
    """The user's own training loop, in the place of a recipe."""

    train: Annotated[
        str | None,
        typer.Option(
            help="Your training function, as package.module:function, in the place of a recipe: "
            "train(model, seed) yields a metric, or metrics by name, at every check-in."
        ),
    ] = None
    loss: LossOption = None
    input_shape: InputOption = None
    coupling: Annotated[
        Literal["paper", "sum", "max", "mean"],
        typer.Option(help="How tied channels are decided, with --train."),
    ] = "paper"
    floor: FloorOption = 0
    length: Annotated[
        int | None, typer.Option(min=1, help="Check-ins of a training, for the method race.")
    ] = None
    cost: CostOption = 0.05


@grouped
def command(
    loop: LoopOptions,
    recipe: Annotated[
        str | None,
        typer.Option(help="A packaged recipe, or a YAML file of yours; see `ranp train`."),
    ] = None,
    methods: Annotated[
        str,
        typer.Option(
            help="Names out of `ranp methods`, and full, separated by commas; race with --train."
        ),
    ] = DEFAULT_METHODS,
    budget: Annotated[
        list[str] | None,
        typer.Option(
            help="flops=10% (of the full network), flops=20G, gflops=X, params=1e6, "
            "activations=200MB; may be repeated. By default flops=10%."
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="How many runs of each.")] = 3,
    data: Annotated[
        str | None,
        typer.Option(
            help="The data set's directory; without it, generated data. With --train, batches to "
            "score with as package.module:function."
        ),
    ] = None,
    network: FactoryOption = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a setting; may be repeated."),
    ] = None,
    smoke: Annotated[
        bool, typer.Option("--smoke", help="The recipe's smallest scale: ends within minutes.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="For results and all runs; by default below out/.")
    ] = None,
    jobs: JobsOption = "1",
    recompute: RecomputeOption = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Bring methods to the same cost, train them from several seeds, and test the differences.

    Stopped at any time, the same command goes on; started several times, the processes share the
    work out.
    """
    from ranp.experiments.jobs import parse_jobs

    names = [name.strip() for name in methods.split(",")]
    shared: dict[str, Any] = {"seeds": seeds, "recompute": recompute, "quiet": quiet}
    shared["jobs"] = parse_jobs(jobs)
    if loop.train is not None:
        _check_loop(recipe, network, settings, smoke)
        out = out or Path("out") / f"compare-{loop.train.partition(':')[0]}"
        say(quiet, f"Comparison: {out}")
        result = _compare_loop(loop, network, names, budget, data, out, **shared)
    else:
        folder = None if data is None else Path(data)
        config = _config(recipe, network, settings, smoke, folder)
        out = out or Path("out") / "-".join(["compare", config.recipe, *["smoke"][:smoke]])
        result = _compare_recipe(config, network, names, budget, folder, out, **shared)
    files = _write(result, out)
    if as_json:
        show_json({"files": [str(path) for path in files], **result})
    else:
        from ranp.report.comparison_tables import terminal

        show(terminal(result))
    say(quiet, f"Written: {files[0]} and {', '.join(path.name for path in files[1:])}")
    say(quiet, f"Next: open {out / 'comparison.html'} in a browser")


def _check_loop(
    recipe: str | None, network: str | None, settings: list[str] | None, smoke: bool
) -> None:
    from ranp.errors import UsageError

    if recipe is not None or settings or smoke:
        raise UsageError("--train stands in the place of a recipe; give one of them")
    if network is None:
        raise UsageError("--train needs the network that is trained; give --network")


def _compare_loop(
    loop: LoopOptions,
    network: str | None,
    names: list[str],
    budget: list[str] | None,
    data: str | None,
    out: Path,
    *,
    quiet: bool,
    **shared: Any,
) -> dict[str, Any]:
    from ranp.experiments.comparing import compare
    from ranp.resources.budgets import split_budgets

    with going_on():
        found = compare(
            load_object(str(network), "network"),
            load_object(str(loop.train), "training function"),
            methods=names,
            budget=[split_budgets([text]) for text in budget or ["flops=10%"]],
            score_with=score_source(data, loop.loss),
            example_input=parse_shape(loop.input_shape),
            coupling=loop.coupling,
            floor=loop.floor,
            length=loop.length,
            cost=loop.cost,
            out=out,
            tell=lambda text: say(quiet, text),
            **shared,
        )
    return dict(found.result)


def _config(
    recipe: str | None,
    network: str | None,
    settings: list[str] | None,
    smoke: bool,
    data: Path | None,
) -> Config:
    from ranp.errors import UsageError
    from ranp.training.config import load_config

    if recipe is None:
        raise UsageError("name a recipe, or a training function of yours; give --recipe or --train")
    if data is not None and not data.is_dir():
        raise UsageError(f"data directory '{data}' does not exist")
    changes: dict[str, Any] = {}
    if network is not None:
        changes |= {"network.name": network, "network.options": {}}
    return load_config(recipe, smoke=smoke, overrides=settings or (), changes=changes, data=data)


def _compare_recipe(
    config: Config,
    network: str | None,
    names: list[str],
    budget: list[str] | None,
    data: Path | None,
    out: Path,
    *,
    seeds: int,
    jobs: Jobs,
    recompute: bool,
    quiet: bool,
) -> dict[str, Any]:
    from ranp.experiments.cells import TrainingCells
    from ranp.experiments.compare import (
        checked_methods,
        make_design,
        parse_budget_text,
        run,
        seconds_left,
    )
    from ranp.experiments.evaluation import evaluate

    # All that can be refused at once is, before anything is written.
    names = list(checked_methods(names))
    budgets = budget or ["flops=10%"]
    for text in budgets:
        parse_budget_text(text)
    factory = load_object(network, "network") if network else None
    store = open_store(out / "cells", TrainingCells, recompute=recompute)
    cells = TrainingCells(store, data, factory)
    design = make_design(cells, config, names, budgets, seeds)
    say(quiet, f"Comparison: {out}")

    def describe(cell: Cell, done: int, total: int) -> tuple[str, str]:
        left = seconds_left(design, store)
        rest = "" if left is None else f", about {_duration(left)} left"
        about = f"{_name(cell)}{rest}"
        return about, f"run {done + 1} of {total}: {about}"

    with going_on(), cell_progress(quiet, "runs", describe) as on_cell:
        run(design, cells, on_cell, jobs)
    return evaluate(design, store)


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


def _write(result: dict[str, Any], out: Path) -> list[Path]:
    """Writes all forms of the result; the picture where matplotlib is installed."""
    from importlib.util import find_spec

    from ranp.files import write_sealed_json, write_text
    from ranp.report.comparison import write_comparison
    from ranp.report.comparison_tables import markdown, page, runs_csv, summary_csv

    names = ["comparison.md", "comparison.csv", "runs.csv", "comparison.json", "comparison.html"]
    files = [out / name for name in names]
    write_text(files[0], markdown(result))
    write_text(files[1], summary_csv(result))
    write_text(files[2], runs_csv(result))
    write_sealed_json(files[3], result)
    if any(row["accuracy"] for at in result["budgets"] for row in at["rows"]):
        title = f"Methods compared: {result['recipe']}"
        write_comparison(
            page(result, title=title, command=shlex.join(["ranp", *sys.argv[1:]])), files[4]
        )
        if find_spec("matplotlib") is not None:
            from ranp.report.comparison_figure import draw_comparison

            files.append(out / "comparison.svg")
            draw_comparison(files[-1], result)
    return [path for path in files if path.exists()]
