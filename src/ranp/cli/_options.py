"""Options that several commands share, as groups: a command takes the group, users see options.

A parameter of a command that is annotated with a data class of options is spread over the
command line, one option per field, and arrives as an instance of that class.
"""

from __future__ import annotations

import inspect
import json
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_type_hints

import typer

from ranp.errors import InfeasibleError, UsageError

if TYPE_CHECKING:
    from ranp.cli._common import Network
    from ranp.pipeline import Target
    from ranp.pruning import Choice
    from ranp.resources.budgets import Budget

Weights = Literal["fresh", "orthogonal", "given"]
Per = Literal["batch", "sample"]

SCORING = ("data", "loss", "samples", "batch", "per", "size", "weights")
"""The parameters that say how a network is scored; who has scores needs none of them."""

NetworkArgument = Annotated[
    str,
    typer.Argument(
        metavar="NET",
        # Written out: asking the registry for the names would import torch.
        help="A network (unet3d-shapenet, unet3d-23-shapenet, unet3d-brats, mobilenetv2-ucf101, "
        "i3d-ucf101) or your own as package.module:factory.",
    ),
]
InputOption = Annotated[
    str | None,
    typer.Option("--input", help="Input shape with batch and channels, such as 1,1,64,64,64."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


def _hush(quiet: bool) -> bool:
    """Keep the library's warnings back, too."""
    logging.getLogger("ranp").setLevel(logging.ERROR if quiet else logging.NOTSET)
    return quiet


QuietOption = Annotated[
    bool,
    typer.Option("--quiet", "-q", help="No messages, no progress.", callback=_hush),
]
BatchOption = Annotated[int, typer.Option(min=1, help="Samples per batch; the paper has 1.")]
SparsityOption = Annotated[
    float, typer.Option(help="Share of neurons to remove (of weights, for snip).")
]


def _floor(text: str | int) -> int | str:
    """Return a floor as `Choice` takes it; the rest is refused there."""
    return int(text) if str(text).lstrip("-").isdigit() else str(text)


FloorOption = Annotated[
    Any,
    typer.Option(
        parser=_floor,
        metavar="INTEGER|auto",
        help="Least number of neurons that every layer keeps; auto takes what the network needs.",
    ),
]
OutOption = Annotated[
    Path | None,
    typer.Option("--out", help="Directory for plan, scores, fresh weights and report."),
]
ScoresOption = Annotated[
    Path | None, typer.Option(help="Made by `ranp score`; scored anew if not given.")
]
ProtectOption = Annotated[
    list[str] | None,
    typer.Option("--protect", help="A layer to keep whole, or a pattern; may be repeated."),
]
SeedOption = Annotated[int, typer.Option(min=0, max=2**32 - 1, help="For all random numbers.")]


@dataclass(frozen=True)
class Output:
    """How results are printed."""

    as_json: JsonOption = False
    quiet: QuietOption = False

    @contextmanager
    def infeasible_as_json(
        self, network: str, method: str, sparsity: float | None
    ) -> Iterator[None]:
        """Print as JSON, if wanted, that a target cannot be reached, and which sparsity can."""
        try:
            yield
        except InfeasibleError as error:
            if self.as_json:
                failure = {
                    "network": network,
                    "method": method,
                    "sparsity": sparsity,
                    "feasible": False,
                    "max_sparsity": error.max_sparsity,
                }
                typer.echo(json.dumps(failure, indent=1))
            raise


@dataclass(frozen=True)
class BudgetOptions:
    """What a network may cost."""

    memory: Annotated[
        str | None, typer.Option(help="What a training step may take: 8GiB, 500MB, 50%.")
    ] = None
    flops: Annotated[
        str | None, typer.Option(help="What a forward pass of a sample may cost: 20GFLOPs, 10%.")
    ] = None
    params: Annotated[
        str | None, typer.Option(help="How many parameters there may be: 3M, 10%.")
    ] = None
    latency: Annotated[
        str | None, typer.Option(help="What a training step may take, measured here: 250ms, 50%.")
    ] = None
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
        """Return the budgets, or the sparsity in their place."""
        given = [f"--{name}" for name, value in vars(self).items() if value]
        if sparsity is None:
            if not given:
                raise UsageError("say how much to prune, such as --flops 10% or --memory 50%")
            return self.budgets()
        if given:
            raise UsageError(f"give budgets or a sparsity, got {given[0]} and --sparsity")
        return sparsity


@dataclass(frozen=True)
class ChoiceOptions:
    """How neurons are chosen."""

    method: Annotated[
        str | None,
        typer.Option(help="See `ranp methods`; ranp-f, or for fit what prunes least, by default."),
    ] = None
    lam: Annotated[
        float | None,
        typer.Option("--lambda", help="How much cost matters (Eq. 10); by default the paper's."),
    ] = None
    resource: Annotated[
        str | None,
        typer.Option(help="What to reweight by instead of the method's own: flops, memory, ..."),
    ] = None
    coupling: Annotated[
        Literal["paper", "sum", "max", "mean"] | None,
        typer.Option(
            help="How channels tied by additions are decided; by default as in the paper."
        ),
    ] = None
    floor: FloorOption = None
    multiple: Annotated[
        int, typer.Option(min=1, help="Round channel counts up to a multiple of it.")
    ] = 1
    protect: ProtectOption = None
    seed: SeedOption = 0

    def choice(self, network: Network) -> Choice:
        """Return the choice that they stand for."""
        from ranp.pruning import Choice

        settings = {
            name: value for name, value in self.settings(network).items() if value is not None
        }
        return Choice.make(self.method or "ranp-f", **settings)

    def settings(self, network: Network) -> dict[str, Any]:
        """Return all but the method, as `Choice.make` takes it; lambda is the paper's if None."""
        lam = network.spec.lam if self.lam is None and network.spec is not None else self.lam
        return {
            "lam": lam,
            "resource": self.resource,
            "coupling": self.coupling,
            "floor": self.floor,
            "multiple": self.multiple,
            "seed": self.seed,
        }


@dataclass(frozen=True)
class ScoringOptions:
    """What a network is scored with, and how."""

    data: Annotated[
        str | None,
        typer.Option(
            help="A data set's directory, or package.module:factory that returns a loader. "
            "Without it, synthetic data of the network's kind.",
        ),
    ] = None
    loss: Annotated[
        str | None,
        typer.Option(help="package.module:function(output, target); cross-entropy by default."),
    ] = None
    samples: Annotated[
        int | None,
        typer.Option(min=1, help="Samples to score with, at the most; 8 by default."),
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


def grouped(function: Callable[..., None]) -> Callable[..., None]:
    """Spread the option groups among a command's parameters over its signature."""
    parameters = inspect.signature(function, eval_str=True).parameters.values()
    groups: dict[str, Any] = {
        p.name: p.annotation for p in parameters if is_dataclass(p.annotation)
    }
    spread: list[inspect.Parameter] = []
    for parameter in parameters:
        group = groups.get(parameter.name)
        spread += [parameter] if group is None else _options_of(group)

    @wraps(function)
    def command(**given: Any) -> None:
        for name, group in groups.items():
            given[name] = group(**{field.name: given.pop(field.name) for field in fields(group)})
        function(**given)

    keyword = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in spread]
    command.__signature__ = inspect.Signature(keyword)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in keyword}
    return command


def _options_of(group: Any) -> list[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=_default(field),
            annotation=hints[field.name],
        )
        for field in fields(group)
    ]


def _default(field: Field[Any]) -> Any:
    return inspect.Parameter.empty if field.default is MISSING else field.default
