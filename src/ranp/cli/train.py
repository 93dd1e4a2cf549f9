"""`ranp train`: prune if asked, then train."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ranp.cli._options import Output, grouped, refuse_race
from ranp.cli._training import DataOption, RecipeOptions, load_factory
from ranp.errors import UsageError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ranp.training.config import Config


@grouped
def command(
    recipe: Annotated[
        str, typer.Argument(metavar="RECIPE", help="A packaged recipe, or your own YAML file.")
    ],
    changing: RecipeOptions,
    output: Output,
    data: DataOption = None,
    plan: Annotated[
        Path | None, typer.Option(help="Apply this plan, from `ranp prune`, first.")
    ] = None,
    transfer: Annotated[
        bool,
        typer.Option("--transfer", help="The plan is for another data set: adapt inputs, classes."),
    ] = False,
    method: Annotated[
        str | None, typer.Option(help="Prune first; see `ranp methods`.", callback=refuse_race)
    ] = None,
    sparsity: Annotated[
        float | None, typer.Option(help="Share of neurons to remove; by default the recipe's.")
    ] = None,
    prune_size: Annotated[
        int | None, typer.Option(help="Prune with volumes of this edge, train with the recipe's.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The run directory; by default below runs/.")
    ] = None,
    resume: Annotated[
        Literal["auto"] | None, typer.Option(help="auto: continue a run in the run directory.")
    ] = None,
    devices: Annotated[int, typer.Option(min=1, help="GPUs (or CPU processes) per node.")] = 1,
    nodes: Annotated[int, typer.Option(min=1, help="Number of machines (torchrun or SLURM).")] = 1,
    print_config: Annotated[
        bool, typer.Option("--print-config", help="Print the resolved settings and exit.")
    ] = False,
) -> None:
    """Train a full or slim network, and write its record."""
    if plan is not None and (method is not None or sparsity is not None):
        raise UsageError("--plan says what to keep; leave out --method and --sparsity")
    if transfer and plan is None:
        raise UsageError("--transfer needs the --plan that is transferred")
    pruned = _changes(method, sparsity, prune_size)
    config = changing.load(recipe, data, pruned, say=output.say)
    if print_config:
        import yaml

        typer.echo(yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False), nl=False)
        return

    from lightning_fabric.utilities.rank_zero import rank_zero_only

    from ranp.cli._training_bar import TrainingBar
    from ranp.pruning import find_method
    from ranp.signals import Interrupted
    from ranp.training.job import Job
    from ranp.training.run import train

    job = Job(
        config=config,
        directory=out or default_directory(config, plan, changing.smoke),
        data=data,
        plan=plan,
        transfer=transfer,
        factory=load_factory(changing.network),
    )
    first = rank_zero_only.rank == 0
    if first:
        if config.pruning.method is not None:
            find_method(config.pruning.method)  # refused before anything is written
        output.say(f"Run directory: {job.directory}")
    try:
        shown = first and not output.quiet
        with TrainingBar(config.epochs) if shown else nullcontext() as listener:
            again = resume is not None
            record = train(job, resume=again, devices=devices, nodes=nodes, listener=listener)
    except Interrupted as error:
        if first:
            raise
        raise typer.Exit(error.exit_code) from error  # the first process says it for all
    if not first:
        return
    output.show(record, _summary(record))
    output.say(f"Open {job.directory / 'report.html'}. Next: ranp evaluate {job.directory}")


def _changes(method: str | None, sparsity: float | None, prune_size: int | None) -> dict[str, Any]:
    changes: dict[str, Any] = {}
    if method is not None or sparsity is not None:
        changes["pruning.method"] = method or "ranp-f"
    if sparsity is not None:
        changes["pruning.sparsity"] = sparsity
    if prune_size is not None:
        if not changes:
            raise UsageError("--prune-size is the size to prune with; say --method too")
        changes["pruning.size"] = prune_size
    return changes


def default_directory(config: Config, plan: Path | None, smoke: bool) -> Path:
    """Return the default run directory: recipe, what was pruned, seed."""
    parts = [config.recipe, *(["smoke"] if smoke else [])]
    if plan is not None:
        parts.append(f"plan-{plan.parent.name or plan.stem}")
    elif config.pruning.method is not None:
        parts.append(f"{config.pruning.method}-{config.pruning.sparsity:g}")
    return Path("runs") / "-".join([*parts, f"seed{config.seed}"])


def _summary(record: dict[str, Any]) -> RenderableType:
    from rich.console import Group

    from ranp.report.terminal import numbers, table, totals_table

    keys = ("mean", "std", "last")
    metrics = table(
        "metric",
        *numbers(*keys),
        title=f"{record['recipe']}, {record['method'] or 'full'}, {record['epochs']} epochs",
        caption=f"Last 5 epochs; {record['seconds']:.0f} s of training.",
    )
    for name, values in record["metrics"].items():
        metrics.add_row(name, *(f"{values[key]:.4f}" for key in keys))
    costs = {name: record[name] for name in ("full", "slim") if record[name]}
    return Group(metrics, "", totals_table(costs)) if costs else metrics
