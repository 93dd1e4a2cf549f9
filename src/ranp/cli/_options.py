"""Options that several commands share, as groups: a command takes the group, users see options.

A parameter of a command that is annotated with a data class of options is spread over the
command line, one option per field, and arrives as an instance of that class.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_type_hints

import typer

from ranp.cli._common import show, show_json
from ranp.errors import InfeasibleError, UsageError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ranp.cli._networks import Network
    from ranp.pipeline import Target
    from ranp.pruning import Choice
    from ranp.resources.budgets import Budget

Weights = Literal["fresh", "orthogonal", "given"]
Per = Literal["batch", "sample"]
Coupling = Literal["paper", "sum", "max", "mean"]
Device = Literal["cpu", "cuda"]
# That of ranp.resources, written out: importing it would import torch.
Optimizer = Literal["sgd", "momentum", "adam", "adamw", "amsgrad"]

SCORING = ("data", "loss", "forward", "samples", "batch", "per", "size", "weights")
"""Parameters that say how a network is scored; not needed where there are scores."""

InputOption = Annotated[
    str | None,
    typer.Option("--input", help="Input shape with batch and channels, such as 1,1,64,64,64."),
]
ForwardOption = Annotated[
    str | None,
    typer.Option(
        help="forward(model, batch) that returns the loss, as package.module:function, instead "
        "of --loss: for several inputs, batches with other names, or deep supervision."
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


def _silence(quiet: bool) -> bool:
    """Silence the library's warnings, too."""
    logging.getLogger("ranp").setLevel(logging.ERROR if quiet else logging.NOTSET)
    return quiet


QuietOption = Annotated[
    bool, typer.Option("--quiet", "-q", help="No messages, no progress.", callback=_silence)
]
BatchOption = Annotated[int, typer.Option(min=1, help="Samples per batch; 1 in the paper.")]


def _floor(text: str | int) -> int | str:
    """Return a floor as `Choice` takes it; the rest is refused there."""
    return int(text) if str(text).lstrip("-").isdigit() else str(text)


FloorOption = Annotated[
    Any,
    typer.Option(
        parser=_floor,
        metavar="INTEGER|auto",
        help="Minimum number of neurons in every layer, or auto for what the network needs.",
    ),
]
OutOption = Annotated[
    Path | None, typer.Option("--out", help="Directory for plan, scores, fresh weights and report.")
]
ScoresOption = Annotated[
    Path | None, typer.Option(help="Scores from `ranp score`; by default, scores are computed.")
]
ProtectOption = Annotated[
    list[str] | None,
    typer.Option("--protect", help="Layer, or pattern, that keeps all neurons; may be repeated."),
]
SplitOption = Annotated[str, typer.Option(help="train, validation or (ShapeNet) test.")]
SeedOption = Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Seed of all random numbers.")]


@dataclass(frozen=True)
class Output:
    """How results are printed."""

    as_json: JsonOption = False
    quiet: QuietOption = False

    def show(self, value: Any, readable: RenderableType) -> None:
        """Print a result to stdout: its value as JSON, or what people read."""
        if self.as_json:
            show_json(value)
        else:
            show(readable)

    def say(self, message: str) -> None:
        """Print a message to stderr."""
        if not self.quiet:
            typer.echo(message, err=True)

    @contextmanager
    def infeasible_as_json(
        self, network: str, method: str, sparsity: float | None
    ) -> Iterator[None]:
        """Print as JSON, if wanted, that a target cannot be reached, and which sparsity can."""
        try:
            yield
        except InfeasibleError as error:
            if self.as_json:
                show_json(
                    {
                        "network": network,
                        "method": method,
                        "sparsity": sparsity,
                        "feasible": False,
                        "max_sparsity": error.max_sparsity,
                    }
                )
            raise


@dataclass(frozen=True)
class CountedBudgets:
    """What a network may cost, in figures that are counted or predicted."""

    memory: Annotated[str | None, typer.Option(help="Peak of a training step: 8GiB, 50%.")] = None
    flops: Annotated[str | None, typer.Option(help="FLOPs of a forward pass: 20G, 10%.")] = None
    params: Annotated[str | None, typer.Option(help="Number of parameters: 3M, 10%.")] = None


@dataclass(frozen=True)
class BudgetOptions(CountedBudgets):
    """What a network may cost."""

    latency: Annotated[str | None, typer.Option(help="Measured time of a step: 250ms, 50%.")] = None
    budget: Annotated[
        list[str] | None,
        typer.Option(help="A budget on any resource, such as activations=200MB; repeatable."),
    ] = None

    def budgets(self) -> tuple[Budget, ...]:
        """Return the budgets that were given.

        Raises:
            UsageError: There is none, or one cannot be understood.
        """
        from ranp.resources.budgets import parse_budgets, split_budgets

        named = {name: text for name, text in vars(self).items() if name != "budget"}
        return parse_budgets({**named, **split_budgets(self.budget or ())})

    def target(self, sparsity: float | None) -> Target:
        """Return the budgets, or the sparsity instead of them."""
        given = [f"--{name}" for name, value in vars(self).items() if value]
        if sparsity is None:
            if not given:
                raise UsageError("say how much to prune, such as --flops 10% or --memory 50%")
            return self.budgets()
        if given:
            raise UsageError(f"give budgets or a sparsity, got {given[0]} and --sparsity")
        return sparsity


def refuse_race(method: str | None) -> str | None:
    """Refuse the method "race", which `ranp.prune` has, and name the command for it."""
    if method == "race":
        raise UsageError(
            "method 'race' trains candidates on your data, which is a command of its own; "
            "use `ranp race`, and then its plan: `ranp train RECIPE --plan out/race/plan.json`"
        )
    return method


@dataclass(frozen=True)
class ChoiceOptions:
    """How neurons are chosen."""

    method: Annotated[
        str | None,
        typer.Option(
            help="See `ranp methods`; by default ranp-f, or for fit the one that prunes least.",
            callback=refuse_race,
        ),
    ] = None
    lam: Annotated[
        float | None,
        typer.Option("--lambda", help="Weight of the cost (Eq. 10); by default the paper's."),
    ] = None
    resource: Annotated[
        str | None,
        typer.Option(help="Resource to reweight by instead of the method's: flops, memory, ..."),
    ] = None
    coupling: Annotated[
        Coupling | None,
        typer.Option(
            help="Rule for channels that are tied by additions; by default as in the paper."
        ),
    ] = None
    floor: FloorOption = None
    multiple: Annotated[
        int, typer.Option(min=1, help="Round channel counts up to a multiple of this number.")
    ] = 1
    protect: ProtectOption = None
    seed: SeedOption = 0

    def choice(self, network: Network) -> Choice:
        """Return the choice that they stand for."""
        from ranp.pruning import Choice

        given = {key: value for key, value in self.settings(network).items() if value is not None}
        return Choice.make(self.method or "ranp-f", **given)

    def settings(self, network: Network) -> dict[str, Any]:
        """Return all but the method, as `Choice.make` takes it; lambda is the paper's if None."""
        given = dict(vars(self))
        if self.lam is None and network.spec is not None:
            given["lam"] = network.spec.lam
        return {key: value for key, value in given.items() if key not in ("method", "protect")}


@dataclass(frozen=True)
class ScoringOptions:
    """What a network is scored with, and how."""

    data: Annotated[
        str | None,
        typer.Option(
            help="Directory of a data set, or your own loader as package.module:factory; "
            "by default synthetic data of the network's kind."
        ),
    ] = None
    loss: Annotated[
        str | None,
        typer.Option(help="package.module:function(output, target); cross-entropy by default."),
    ] = None
    forward: ForwardOption = None
    samples: Annotated[
        int | None,
        typer.Option(min=1, help="Maximum number of samples to score with; 8 by default."),
    ] = None
    per: Annotated[
        Per,
        typer.Option(help="Score whole batches, or their samples one by one, as the paper does."),
    ] = "batch"
    size: Annotated[
        int | None,
        typer.Option(min=1, help="Edge of the volumes to score with, if not the network's input."),
    ] = None
    weights: Annotated[
        Weights, typer.Option(help="Weights to score with; the paper's are fresh.")
    ] = "fresh"


def check_loss(loss: str | None, forward: str | None) -> None:
    """Refuse a loss beside a forward that returns it."""
    if loss is not None and forward is not None:
        raise UsageError("--forward stands for the loss; give one of --loss and --forward")


def grouped(function: Callable[..., None]) -> Callable[..., None]:
    """Spread the option groups among a command's parameters over its signature."""
    parameters = inspect.signature(function, eval_str=True).parameters.values()
    groups: dict[str, Any] = {
        p.name: p.annotation for p in parameters if is_dataclass(p.annotation)
    }
    spread: list[inspect.Parameter] = []
    for parameter in parameters:
        if parameter.name not in groups:
            spread.append(parameter)
            continue
        group = groups[parameter.name]
        hints = get_type_hints(group, include_extras=True)
        options = inspect.signature(group).parameters.values()
        spread += [option.replace(annotation=hints[option.name]) for option in options]

    @wraps(function)
    def command(**given: Any) -> None:
        for name, group in groups.items():
            given[name] = group(**{field.name: given.pop(field.name) for field in fields(group)})
        function(**given)

    keyword = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in spread]
    command.__signature__ = inspect.Signature(keyword)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in keyword}
    return command
