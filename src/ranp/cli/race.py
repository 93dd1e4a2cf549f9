"""`ranp race`: which allocation suits one's own network and data."""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from ranp.cli._common import parse_shape, say, show, show_json
from ranp.cli._options import (
    FloorOption,
    InputOption,
    JsonOption,
    QuietOption,
    SeedOption,
    grouped,
)
from ranp.user_code import load_loader, load_object

CostOption = Annotated[
    float, typer.Option(help="Most that a race may cost, as a share of the training that follows.")
]
LossOption = Annotated[
    str | None, typer.Option(help="loss(output, target), as package.module:function.")
]


@dataclass(frozen=True)
class Training:
    """What is trained: a recipe, or a loop of the user's own."""

    recipe: Annotated[
        str | None,
        typer.Option(help="A packaged recipe, or a YAML file of yours; see `ranp train`."),
    ] = None
    network: Annotated[
        str | None, typer.Option(help="The full network, as package.module:factory.")
    ] = None
    train: Annotated[
        str | None,
        typer.Option(
            help="The training function, as package.module:function: train(model, seed) yields a "
            "metric, or metrics by name, at every check-in."
        ),
    ] = None
    length: Annotated[
        int | None,
        typer.Option(min=1, help="Check-ins of a whole training; a recipe knows its own."),
    ] = None
    data: Annotated[
        str | None,
        typer.Option(
            help="Batches to score with, as package.module:function; for methods with data. With "
            "--recipe, the data set's directory."
        ),
    ] = None
    loss: LossOption = None
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a setting of the recipe."),
    ] = None
    smoke: Annotated[bool, typer.Option("--smoke", help="The recipe's smallest scale.")] = False


@grouped
def command(
    training: Training,
    budget: Annotated[
        str, typer.Option(help="What the slim network may cost: flops=10%, params=1e6.")
    ] = "flops=10%",
    candidates: Annotated[
        str,
        typer.Option(
            help="Names out of `ranp methods`, separated by commas; the others must beat the first."
        ),
    ] = "default",
    cost: CostOption = 0.05,
    input_shape: InputOption = None,
    floor: FloorOption = 0,
    seed: SeedOption = 0,
    out: Annotated[Path, typer.Option(help="Directory for the runs and the plan.")] = Path(
        "out/race"
    ),
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Train several allocations of one cost a little, and keep the best.

    Stopped at any time, the same command goes on; started several times, the processes share the
    work out.
    """
    from ranp.resources.budgets import split_budgets
    from ranp.trials.race import race

    arguments, following = (
        _loop(training, out) if training.recipe is None else _recipe(training, out)
    )
    found = race(
        **arguments,
        budget=split_budgets([budget]),
        candidates="default" if candidates == "default" else candidates.split(","),
        cost=cost,
        seed=seed,
        example_input=parse_shape(input_shape),
        floor=floor,
        out=out,
        tell=lambda text: say(quiet, text),
    )
    found.save(out, shlex.join(["ranp", *sys.argv[1:]]))
    if as_json:
        show_json(found.to_dict())
    else:
        show(found)
    say(quiet, f"Written: {out / 'plan.json'}, race.json, race.html")
    say(quiet, f"Next: {following}")


def _loop(training: Training, out: Path) -> tuple[dict[str, Any], str]:
    """Return what a loop of the user's own trains, and what follows the race."""
    from ranp.errors import UsageError

    if training.network is None or training.train is None or training.length is None:
        raise UsageError(
            "a race must know what is trained; give --recipe, or --network, --train and --length"
        )
    if training.settings or training.smoke:
        raise UsageError("--set and --smoke change a recipe; give --recipe")
    arguments = {
        "build": load_object(training.network, "network"),
        "train": load_object(training.train, "training function"),
        "length": training.length,
        "score_with": score_source(training.data, training.loss),
    }
    apply = f"ranp.Plan.load('{out / 'plan.json'}').apply({training.network}())"
    return arguments, f"{apply} and train it"


def _recipe(training: Training, out: Path) -> tuple[dict[str, Any], str]:
    """Return what a recipe trains, and what follows the race."""
    from ranp.errors import UsageError
    from ranp.training.config import load_config
    from ranp.training.job import Job
    from ranp.training.recipe_loop import RecipeLoop

    if training.train is not None or training.length is not None or training.loss is not None:
        raise UsageError("--recipe says how to train; leave out --train, --length and --loss")
    data = None if training.data is None else Path(training.data)
    if data is not None and not data.is_dir():
        raise UsageError(f"data directory '{data}' does not exist")
    network = training.network
    changes = {} if network is None else {"network.name": network, "network.options": {}}
    config = load_config(
        str(training.recipe),
        smoke=training.smoke,
        overrides=training.settings or (),
        changes=changes,
        data=data,
    )
    factory = None if network is None else load_object(network, "network")
    loop = RecipeLoop(Job(config, out, data=data, factory=factory))
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


def score_source(data: str | None, loss: str | None) -> tuple[Any, Any] | None:
    """Return the loader and the loss that options name; None without both."""
    from ranp.errors import UsageError

    if data is None and loss is None:
        return None
    if data is None or loss is None:
        raise UsageError("methods that score with data need both; give --data and --loss")
    return load_loader(data, "--data"), load_object(loss, "--loss")
