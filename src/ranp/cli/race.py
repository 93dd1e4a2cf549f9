"""`ranp race`: which allocation suits one's own network and data."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from ranp.cli._cells import resume_hint
from ranp.cli._common import command_line
from ranp.cli._networks import parse_shape
from ranp.cli._options import Output, SeedOption, grouped
from ranp.cli._training import TrainingOptions, load_factory
from ranp.errors import UsageError
from ranp.user_code import load_function


@grouped
def command(
    training: TrainingOptions,
    output: Output,
    budget: Annotated[
        str, typer.Option(help="Budget of the slim network: flops=10%, params=1e6.")
    ] = "flops=10%",
    candidates: Annotated[
        str,
        typer.Option(help="Comma-separated names from `ranp methods`, first the one to beat."),
    ] = "default",
    seed: SeedOption = 0,
    out: Annotated[Path, typer.Option(help="Directory for the runs and the plan.")] = Path(
        "out/race"
    ),
    jobs: Annotated[
        int,
        typer.Option(
            min=1,
            help="Number of processes that train, on this machine. Each uses OMP_NUM_THREADS "
            "threads.",
        ),
    ] = 1,
) -> None:
    """Train several slim networks of the same cost for a short while, and keep the best.

    You can stop it at any time; the same command continues. Started several times, on machines with
    a common file system, the processes share the trainings.
    """
    from ranp.resources.budgets import split_budgets
    from ranp.trials.race import race

    training.check()
    names = [name.strip() for name in candidates.split(",")]
    arguments, following = (
        _loop(training, out) if training.recipe is None else _recipe(training, out)
    )
    with resume_hint():
        result = race(
            **arguments,
            budget=split_budgets([budget]),
            candidates="default" if names == ["default"] else names,
            cost=training.cost,
            seed=seed,
            example_input=parse_shape(training.input_shape),
            floor=training.floor,
            out=out,
            jobs=jobs,
            tell=output.say,
        )
    result.save(out, command_line())
    output.show(result.to_dict(), result)
    output.say(f"Written: {out / 'plan.json'}, race.json, race.html")
    output.say(f"Next: {following}")


def _loop(training: TrainingOptions, out: Path) -> tuple[dict[str, Any], str]:
    """Return what a loop of the user's own trains, and what follows the race."""
    if training.length is None:
        raise UsageError("a race needs the length of a whole training; give --length")
    arguments = {
        "build": load_factory(training.network),
        "train": load_function(str(training.train), "training function"),
        "length": training.length,
        **training.scored(),
    }
    module, _, build = str(training.network).partition(":")
    apply = f"model = ranp.Plan.load({str(out / 'plan.json')!r}).apply({build}())"
    return arguments, f"in Python, import ranp; from {module} import {build}; {apply}"


def _recipe(training: TrainingOptions, out: Path) -> tuple[dict[str, Any], str]:
    """Return what a recipe trains, and what follows the race."""
    from ranp.training.job import Job
    from ranp.training.recipe_loop import RecipeLoop

    data, network = training.directory, training.network
    loop = RecipeLoop(Job(training.config(), out, data=data, factory=load_factory(network)))
    arguments = {
        "build": loop.build,
        "train": loop.train,
        "length": loop.length,
        "score_with": loop.score_with(),
        "name": loop.name,
    }
    words = ["ranp", "train", str(training.recipe), "--plan", str(out / "plan.json")]
    words += [] if data is None else ["--data", str(data)]
    words += [] if network is None else ["--network", network]
    words += [word for setting in training.settings or () for word in ("--set", setting)]
    words += ["--smoke"] if training.smoke else []
    return arguments, shlex.join(words)
