"""Networks and plans that are named on the command line."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ranp.cli._options import InputOption
from ranp.errors import UsageError
from ranp.user_code import call_factory, load_function, load_loader, refuse_stored_code

if TYPE_CHECKING:
    from torch import nn

    from ranp.graph import ExampleInput
    from ranp.models import NetworkSpec
    from ranp.peeking import Batches
    from ranp.pipeline import Traced
    from ranp.pruning import Forward
    from ranp.slimming import Plan


NetworkArgument = Annotated[
    str,
    typer.Argument(
        metavar="NET",
        # Written out: asking the registry for the names would import torch.
        help="A network (unet3d-shapenet, unet3d-23-shapenet, unet3d-brats, mobilenetv2-ucf101, "
        "i3d-ucf101) or your own as package.module:factory.",
    ),
]
LoaderOption = Annotated[
    str | None,
    typer.Option(
        "--data",
        help="Your own loader as package.module:factory; its first batch sets the input.",
    ),
]


@dataclass(frozen=True)
class Network:
    """A network that was named on the command line: a new instance, and the input to trace it with.

    A network of the user's own has no `spec`; `batches` is the user's own loader, if it was opened
    to see the input, and `forward` the user's own way to call the network on them.
    """

    name: str
    model: nn.Module
    input_shape: tuple[int, ...]
    spec: NetworkSpec | None
    batches: Batches | None = None
    forward: Forward | None = None

    @property
    def input_option(self) -> dict[str, str]:
        """The option that a next command needs where no loader tells the input."""
        given = ",".join(map(str, self.input_shape))
        return {"input_shape": given} if self.spec is None and self.forward is None else {}

    def trace(self, batches: Batches | None, protect: list[str] | None) -> Traced:
        """Trace it, with what it is scored with and the layers to keep whole."""
        from ranp.fitting import TrainingStep
        from ranp.fitting.target import example_at
        from ranp.pipeline import trace

        example: ExampleInput = self.input_shape
        if self.forward is not None and self.batches is not None:
            step = TrainingStep(batch=1, sample=self.input_shape[1:])
            example = example_at(self.model, self.forward, self.batches.first, step)
        return trace(self.model, batches, example_input=example, protect=protect or ())


@dataclass(frozen=True)
class NetworkOptions:
    """A network and its input."""

    network: NetworkArgument
    input_shape: InputOption = None

    def load(self, data: str | None = None, forward: str | None = None) -> Network:
        """Build a network of the registry, or call the user's own factory.

        The shape of a sample gets a batch of 1. Without `--input`, it is the registry's, or that of
        the user's own loader that `data` names; `forward` names how it is called on its batches.
        """
        shape = parse_shape(self.input_shape)
        model, spec = _build(self.network)
        own = None if forward is None else _open_own(data, forward)
        return _with_input(self.network, model, spec, shape, data, own)


def load_sample_network(
    name: str, input_text: str | None, batch: int | None, data: str | None, forward: str | None
) -> tuple[Network, int | None]:
    """Build a network for one sample of what it is trained with, and return the batch size too.

    The text is the shape of a sample, or of a batch; `data` may name a loader of the user's own,
    and `forward` how the network is called on its batches.
    """
    from ranp.graph import split_batch

    model, spec = _build(name)
    shape = parse_shape(input_text)
    own = None if forward is None else _open_own(data, forward)
    if shape is not None:
        like = () if own is None else own[0].input_shape(own[1])
        batch, sample = split_batch(model, shape, batch, like=like)
        shape = sample if like else (1, *sample)
    return _with_input(name, model, spec, shape, data, own), batch


def _build(name: str) -> tuple[nn.Module, NetworkSpec | None]:
    from torch import nn

    from ranp.models import find_network, network_names

    if ":" not in name:
        spec = find_network(name)
        if not spec.input_shape:
            raise UsageError(
                f"network '{name}' is a family whose options a recipe gives; "
                f"name one of {', '.join(network_names())}"
            )
        return spec.build(), spec
    model = call_factory(name, "network")
    if not isinstance(model, nn.Module):
        raise UsageError(f"network '{name}' must be an nn.Module, got {type(model).__name__}")
    return model, None


def _with_input(
    name: str,
    model: nn.Module,
    spec: NetworkSpec | None,
    shape: tuple[int, ...] | None,
    data: str | None,
    own: tuple[Batches, Forward] | None = None,
) -> Network:
    from ranp.graph import with_batch

    if own is not None:
        return Network(name, model, _resized(own[0].input_shape(own[1]), shape), spec, *own)
    if shape is None and spec is not None:
        return Network(name, model, spec.input_shape, spec)
    if shape is None:
        if data is None or not names_loader(data):
            check_directory(data)
            raise UsageError(
                f"give the input shape of '{name}', such as --input 1,1,64,64,64, or your own "
                "loader: --data package.module:loader"
            )
        batches = open_loader(data)
        return Network(name, model, _sample_shape(batches, data), spec, batches)
    shape = with_batch(model, shape)
    if spec is None:
        return Network(name, model, shape, spec)
    if len(shape) != len(spec.input_shape):
        raise UsageError(
            f"--input must have {len(spec.input_shape)} dimensions for {name} (batch, channels, "
            f"then space), got {shape}; write {','.join(map(str, spec.input_shape))}"
        )
    if shape[1] != spec.input_shape[1]:
        raise UsageError(
            f"the channels of --input must be {spec.input_shape[1]} for {name}, got {shape[1]}"
        )
    return Network(name, model, shape, spec)


def _open_own(data: str | None, forward: str) -> tuple[Batches, Forward]:
    """Open the batches that the user's own forward is called with, and load it."""
    if data is None or not names_loader(data):
        raise UsageError(
            "--forward is called with batches of your own; give --data package.module:loader"
        )
    function = load_function(forward, "--forward")
    return open_loader(data), function


def _resized(shape: tuple[int, ...], wanted: tuple[int, ...] | None) -> tuple[int, ...]:
    """Return the input of a batch, or what is wanted instead, as a batch of one sample."""
    if wanted is None:
        return (1, *shape[1:])
    sample = wanted[1:] if len(wanted) == len(shape) else wanted
    if len(sample) != len(shape) - 1:
        raise UsageError(
            f"--input must have {len(shape) - 1} dimensions (channels, then space), as a sample in "
            f"--data has, got {wanted}; write {','.join(map(str, shape[1:]))}"
        )
    return (1, *sample)


def names_loader(data: str) -> bool:
    """Return whether an option `--data` names a loader of the user's own, and no directory."""
    return ":" in data and not Path(data).exists()


def check_directory(data: str | None) -> None:
    """Refuse a directory of data that does not exist."""
    if data is not None and not Path(data).is_dir():
        raise UsageError(
            f"data directory '{data}' does not exist; name a directory, or "
            "your own loader as package.module:factory"
        )


def open_loader(name: str) -> Batches:
    """Open a loader of the user's own, and look at its first batch."""
    from ranp.peeking import peek_blamed

    batches = peek_blamed(load_loader(name, "data"))
    if batches.first is None:
        raise UsageError(f"data '{name}' is empty: it yields no batch")
    return batches


def _sample_shape(batches: Batches, name: str) -> tuple[int, ...]:
    """Return the input of a first batch as the shape of one sample, with a batch of 1."""
    from torch import Tensor

    from ranp.pruning.batches import split_pair

    x, _ = split_pair(batches.first)
    if not isinstance(x, Tensor):
        raise UsageError(
            f"the input in a batch of '{name}' must be a tensor, got {type(x).__name__}; for "
            "several inputs, give --forward package.module:function(model, batch)"
        )
    return (1, *x.shape[1:])


def load_planned(
    path: Path, network: str | None, shape: tuple[int, ...] | None = None
) -> tuple[Plan, Network]:
    """Load a plan, and build the full network that it is for, by default at the plan's input.

    The user's own network is named again: a stored file alone must not import code.
    """
    from ranp.slimming import Plan

    plan = Plan.load(path)
    name = network or plan.network
    if name is None:
        raise UsageError(
            f"plan '{path}' was made in Python and does not say which network it is for; "
            "name it: --network package.module:factory"
        )
    if network is None:
        refuse_stored_code(name)
    model, spec = _build(name)
    plan.check_network(model)  # before its input is: the plan may name another network
    return plan, _with_input(name, model, spec, shape or traced_shape(plan), None)


def traced_shape(plan: Plan) -> tuple[int, ...]:
    """Return the input shape that a plan was made at."""
    args, kwargs = plan.inputs["args"], plan.inputs["kwargs"]
    if len(args) != 1 or kwargs or "tensor" not in args[0]:
        raise UsageError(
            f"the plan of a command must be for a network with one input, got {len(args)} and "
            f"{len(kwargs)} by name; use it in Python: ranp.Plan.load(path).apply(model)"
        )
    return tuple(args[0]["tensor"])


def parse_shape(text: str | None) -> tuple[int, ...] | None:
    """Return the shape of an option `--input`, if it was given."""
    return None if text is None else parse_sizes(text, "--input", "1,1,64,64,64")


def parse_sizes(text: str, option: str, example: str) -> tuple[int, ...]:
    """Return the comma-separated sizes of an option; an error shows the example."""
    parts = text.split(",")
    if not all(part.strip().isdecimal() and int(part) > 0 for part in parts):
        raise UsageError(f"{option} must be whole numbers above 0, got '{text}'; write {example}")
    return tuple(int(part) for part in parts)
