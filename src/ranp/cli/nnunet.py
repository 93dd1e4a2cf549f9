"""`ranp nnunet`: slim networks in nnU-Net's plans files."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

from ranp.cli._common import command_line, show, show_json
from ranp.cli._options import CountedBudgets, Coupling, FloorOption, Output, grouped
from ranp.errors import UsageError

app = typer.Typer(help="Slim networks for nnU-Net v2, in its plans files.", no_args_is_help=True)
_TRAIN_DEFAULTS = {"-tr": "nnUNetTrainer", "-device": "cuda"}
"""What nnUNetv2_train takes if it is not told."""


@dataclass(frozen=True)
class PlanOptions:
    """How plans are pruned; names and defaults are those of `prune_plans`."""

    plans: Annotated[str, typer.Option("-p", "--plans", help="Name of the plans to prune.")] = (
        "nnUNetPlans"
    )
    sparsity: Annotated[
        float | None, typer.Option(help="Share of neurons to remove, instead of budgets.")
    ] = None
    method: Annotated[
        str, typer.Option(help="See `ranp methods`; race trains several, keeps the best.")
    ] = "ranp-f"
    coupling: Annotated[
        Coupling | None,
        typer.Option(help="Rule for channels that are tied by additions."),
    ] = None
    floor: FloorOption = None
    candidates: Annotated[
        str | None,
        typer.Option(help="Comma-separated methods that race, first the one to beat."),
    ] = None
    epochs: Annotated[
        int | None, typer.Option(min=1, help="Epochs of the training that follows a race.")
    ] = None
    iterations: Annotated[
        int | None, typer.Option(min=1, help="Iterations of an epoch in a race.")
    ] = None
    cost: Annotated[
        str | None,
        typer.Option(help="Maximum cost of a race, as a share of the training; by default 5%."),
    ] = None
    fold: Annotated[str, typer.Option(help="Fold whose training cases to score with, or all.")] = (
        "0"
    )
    batches: Annotated[int, typer.Option(min=1, help="Batches to score with.")] = 8
    out_plans: Annotated[
        str | None, typer.Option(help="Name of the slim plans; by default PLANS_ranp.")
    ] = None
    trainer: Annotated[str, typer.Option("-tr", "--trainer", help="nnU-Net's trainer class.")] = (
        "nnUNetTrainer"
    )
    device: Annotated[
        Literal["cpu", "cuda"], typer.Option(help="What the network will be trained on.")
    ] = "cuda"
    seed: Annotated[int, typer.Option(help="Seed of batches and fresh weights.")] = 0


@app.command()
@grouped
def prune(
    dataset: Annotated[str, typer.Argument(metavar="DATASET", help="Number or name.")],
    configuration: Annotated[
        str, typer.Argument(metavar="CONFIG", help="2d, 3d_fullres or 3d_lowres.")
    ],
    amounts: CountedBudgets,
    output: Output,
    options: PlanOptions,
) -> None:
    """Prune a configuration of nnU-Net's plans, and write plans for the slim network."""
    from ranp.integrations.nnunet import prune_plans, slim_plans_summary
    from ranp.integrations.nnunet.summary import to_dict

    fold = options.fold
    if fold != "all" and not fold.isdecimal():
        raise UsageError(f"fold must be a number or 'all', got '{fold}'")
    given = {**vars(amounts), **vars(options), "fold": "all" if fold == "all" else int(fold)}
    if options.candidates is not None:
        given["candidates"] = options.candidates.split(",")
    slim = prune_plans(dataset, configuration, **given, command=command_line(), tell=output.say)
    if output.as_json:
        about = {"plans": str(slim.path), "report": str(slim.report), **to_dict(slim.about)}
        race = {} if slim.race is None else {"race": slim.race.to_dict()}
        show_json({"configuration": configuration, **about, **race})
    else:
        if slim.race is not None:
            show(slim.race)
        show(slim_plans_summary({configuration: slim.about}))
    output.say(f"Plans in {slim.path}. Open {slim.report}.")
    train = {"-p": slim.name, "-tr": options.trainer, "-device": options.device}
    output.say(f"Next: {_train_command(dataset, configuration, fold, train)}")


def _train_command(dataset: str, configuration: str, fold: str, options: Mapping[str, str]) -> str:
    """Return the command that trains the slim network, to be pasted into a shell."""
    words = ["nnUNetv2_train", dataset, configuration, fold]
    for option, value in options.items():
        if value != _TRAIN_DEFAULTS.get(option):
            words += [option, value]
    return shlex.join(words)


@app.command("show")
@grouped
def show_plans(
    plans: Annotated[
        Path, typer.Argument(metavar="PLANS", help="A plans file with slim networks.")
    ],
    output: Output,
) -> None:
    """Show what slim plans hold: the full network against the slim one."""
    from ranp.integrations.nnunet import read_slim_plans, slim_plans_summary
    from ranp.integrations.nnunet.plans import report_folder
    from ranp.integrations.nnunet.summary import to_dict

    configurations = read_slim_plans(plans)
    values = {name: to_dict(about) for name, about in configurations.items()}
    output.show(values, slim_plans_summary(configurations))
    for name in configurations:
        page = report_folder(plans, name) / "report.html"
        if page.exists():
            output.say(f"Open {page}.")
