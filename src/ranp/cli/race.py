"""`ranp race`: which allocation suits one's own network and data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ranp.cli._common import parse_shape, say, show, show_json
from ranp.cli._options import FloorOption, InputOption, JsonOption, QuietOption, SeedOption
from ranp.user_code import load_loader, load_object

NetworkOption = Annotated[str, typer.Option(help="The full network, as package.module:factory.")]
TrainOption = Annotated[
    str,
    typer.Option(
        help="The training function, as package.module:function: train(model, seed) yields a "
        "metric, or metrics by name, at every check-in."
    ),
]
LoaderOption = Annotated[
    str | None,
    typer.Option(
        "--data", help="Batches to score with, as package.module:function; for methods with data."
    ),
]
CostOption = Annotated[
    float, typer.Option(help="Most that a race may cost, as a share of the training that follows.")
]
LossOption = Annotated[
    str | None, typer.Option(help="loss(output, target), as package.module:function.")
]


def command(
    network: NetworkOption,
    train: TrainOption,
    length: Annotated[int, typer.Option(min=1, help="Check-ins of a whole training.")],
    budget: Annotated[
        str, typer.Option(help="What the slim network may cost: flops=10%, params=1e6.")
    ] = "flops=10%",
    candidates: Annotated[
        str, typer.Option(help="Names out of `ranp methods`, separated by commas.")
    ] = "default",
    cost: CostOption = 0.05,
    data: LoaderOption = None,
    loss: LossOption = None,
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

    found = race(
        load_object(network, "network"),
        load_object(train, "training function"),
        budget=split_budgets([budget]),
        length=length,
        candidates="default" if candidates == "default" else candidates.split(","),
        cost=cost,
        seed=seed,
        score_with=score_source(data, loss),
        example_input=parse_shape(input_shape),
        floor=floor,
        out=out,
        tell=lambda text: say(quiet, text),
    )
    found.save(out)
    if as_json:
        show_json(found.to_dict())
    else:
        show(found)
    say(quiet, f"Written: {out / 'plan.json'}, {out / 'race.json'}")
    say(quiet, f"Next: ranp.Plan.load('{out / 'plan.json'}').apply({network}()) and train it")


def score_source(data: str | None, loss: str | None) -> tuple[Any, Any] | None:
    """Return the loader and the loss that options name; None without both."""
    from ranp.errors import UsageError

    if data is None and loss is None:
        return None
    if data is None or loss is None:
        raise UsageError("methods that score with data need both; give --data and --loss")
    return load_loader(data, "--data"), load_object(loss, "--loss")
