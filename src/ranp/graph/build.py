"""From a model to its channel graph: a recorded forward, label pass and trial until they agree."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass, replace
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

import ranp.graph.rules  # noqa: F401  (fills the registry of rules)
from ranp.errors import TraceError, UsageError, first_of, name_settings, suggest
from ranp.graph.batching import describe_batch
from ranp.graph.channel_graph import Alive, ChannelGraph, Layer, slim_shape
from ranp.graph.inputs import ExampleInput, Inputs, TensorShape
from ranp.graph.labels import Dims, LabelArray, LabelSpace
from ranp.graph.propagation import (
    Decisions,
    LayerCall,
    Misreading,
    Pass,
    Propagator,
    Record,
    is_layer,
)
from ranp.graph.recording import Recorder, Recording
from ranp.graph.replay import Divergence, check_copies
from ranp.graph.surgery import meta_copy, named_tensors, owner_of, rebuild
from ranp.graph.tracing import Mode

_MOST_TRIALS = 200
# The dimension of channels where it is not the one after the batch.
_CHANNELS = {"LayerNorm": -1, "RMSNorm": -1}
# Attributes of custom modules, and the tensors whose channels they count.
_COUNTING_ATTRIBUTES = {
    "in_channels": "inputs",
    "input_channels": "inputs",
    "out_channels": "outputs",
    "output_channels": "outputs",
    "num_channels": "inputs",
}
# Attributes of norms written by hand: the shape of a weight of theirs, or its number of elements.
_SHAPE_ATTRIBUTES = {"normalized_shape", "num_features", "num_channels"}


def build_graph(
    model: nn.Module,
    example_input: ExampleInput,
    *,
    protect: Iterable[str] = (),
    switches: Mapping[str, Iterable[Any]] | None = None,
) -> ChannelGraph:
    """Find which channels of a model must be kept or removed together.

    The model is traced on fake tensors in eval and in train mode (deep supervision heads exist in
    only one of them), so neither data nor memory is needed, and the model is not changed. Then a
    trial network with half of all removable channels is traced: where the model's code turns out to
    hard-code a channel number, the channels in question are pinned, and the graph's `notes` say so.
    Hooks are part of the model: they are called with fake tensors.

    Args:
        model: Any module.
        example_input: A tensor, a shape, a sequence of arguments, or a mapping of keyword
            arguments; only shapes matter.
        protect: Names of layers, or patterns such as "decoder.*", that keep all neurons.
        switches: Attributes that decide which layers the forward pass calls, and all their values:
            `{"decoder.deep_supervision": (True, False)}`. The model is traced with each, so that
            the slim one can be switched too.

    Raises:
        TraceError: The forward fails, or uses an operation that has no rule.
        UsageError: A protected name or a switch matches nothing.
    """
    model = unwrap(model)
    _check_model(model)
    values = {name: tuple(given) for name, given in (switches or {}).items()}
    inputs = describe_batch(model, example_input)
    patterns = protect_patterns(model, protect)
    shapes = {name: TensorShape.of(tensor) for name, tensor in named_tensors(model)}
    notes: list[str] = []
    recordings = _record(model, shapes, inputs, values, notes)
    decisions = Decisions()
    for _ in range(_MOST_TRIALS):
        try:
            graph = _propagate(model, shapes, recordings, inputs, decisions, patterns)
            # A wrong reading can fit one trial by chance.
            for seed in range(2 if decisions.readings else 1):
                trial = _random_half(graph, seed)
                make_slim = partial(slim_meta_copy, model, graph, trial)
                distinct = _distinct_modes(graph.passes)
                check_copies(make_slim, graph, trial, distinct)
            others = [mode for mode in graph.passes if mode not in distinct]
            check_copies(make_slim, graph, trial, others)
        except (Misreading, Divergence) as failure:
            last = failure
            note = _learn(failure, decisions)
            if note is not None and note not in notes:
                notes.append(note)
        else:
            return replace(graph, notes=(*notes, *_unreached(model, graph)), switches=values)
    raise TraceError(
        f"{type(model).__name__} still refuses smaller channel numbers after {_MOST_TRIALS} "
        f"trials ({last}); protect the layers concerned"
    )


def _check_model(model: nn.Module) -> None:
    for name, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            what = f"its module '{name}'" if name else "model"
            raise UsageError(
                f"{what} must be an nn.Module with Python code, got a {type(module).__name__}; "
                "give the module that it was compiled from"
            )
    for name, tensor in named_tensors(model):
        if is_lazy(tensor):
            raise UsageError(
                f"'{name}' has no shape yet; run the model once, so that its lazy modules are "
                "initialized"
            )
        if tensor.layout is not torch.strided:
            raise UsageError(f"'{name}' must be dense, got {tensor.layout}; call to_dense() on it")
        if tensor.is_complex():
            raise UsageError(
                f"'{name}' must be real, got {tensor.dtype}; complex channels are not supported"
            )


def check_values(model: nn.Module) -> None:
    """Refuse a model whose parameters hold no values, or none that gradients can be taken of."""
    for name, tensor in unwrap(model).named_parameters():
        if tensor.is_meta:
            raise UsageError(
                f"'{name}' is on the meta device and holds no values; build the model on a real "
                "device, or call model.to_empty(device=...) and initialize it"
            )
        if tensor.is_inference():
            raise UsageError(
                f"'{name}' was made in torch.inference_mode() and takes no gradients; build the "
                "model outside of it"
            )


def unwrap(model: Any) -> nn.Module:
    """Return the module inside of `torch.compile` and (distributed) data parallel wrappers."""
    if not isinstance(model, nn.Module):
        what = f"the class {model.__name__}" if isinstance(model, type) else type(model).__name__
        raise UsageError(f"model must be an nn.Module, got {what}; give an instance of one")
    module: nn.Module = model
    parallel = (nn.DataParallel, nn.parallel.DistributedDataParallel)
    while True:
        inner = getattr(module, "module" if isinstance(module, parallel) else "_orig_mod", None)
        if not isinstance(inner, nn.Module):
            return module
        module = inner


def protect_patterns(model: nn.Module, protect: Iterable[str]) -> tuple[str, ...]:
    """Return patterns of all layers to protect; raise `UsageError` if one matches nothing."""
    names = [name for name, _ in model.named_modules() if name]
    names += [name for name, _ in model.named_parameters()]  # raw ones are layers of their own
    patterns: list[str] = []
    for pattern in protect:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise UsageError(f"no layer is called '{pattern}'.{suggest(pattern, names)}")
        patterns += [pattern, f"{pattern}.*"]  # what is inside of a protected module is protected
    return tuple(patterns)


def _record(
    model: nn.Module,
    shapes: Mapping[str, TensorShape],
    inputs: Inputs,
    switches: Mapping[str, tuple[Any, ...]],
    notes: list[str],
) -> dict[Mode, Recording]:
    """Run the forward in all modes; a train mode that cannot be traced is added to the notes."""
    recordings: dict[Mode, Recording] = {}
    for mode in _modes(model, switches):
        try:
            recordings[mode] = Recorder(meta_copy(model)).record(shapes, inputs, mode)
        except TraceError as error:
            # Train mode can be out of reach of the example (batch norm over a single value).
            if not mode.training or not isinstance(error.__cause__, ValueError):
                raise
            notes.append(f"train mode could not be traced: {error}")
    return recordings


def _distinct_modes(passes: Mapping[Mode, Pass]) -> list[Mode]:
    """Return the modes without those in which the forward does what it does in another one."""
    modes: dict[tuple[Any, ...], Mode] = {}
    for mode, label_pass in passes.items():
        operations = tuple(
            (r.name, tuple(r.numbers.items()), tuple(shape for shape, _ in r.outputs))
            for r in label_pass.records
        )
        modes.setdefault(operations, mode)
    return list(modes.values())


def _propagate(
    model: nn.Module,
    shapes: Mapping[str, TensorShape],
    recordings: Mapping[Mode, Recording],
    inputs: Inputs,
    decisions: Decisions,
    protect: tuple[str, ...],
) -> ChannelGraph:
    """Run the label pass over all forwards, over one space of labels, and number the classes."""
    space = LabelSpace()
    labels = {name: _initial_dims(model, name, shape, space) for name, shape in shapes.items()}
    passes = {
        mode: Propagator(model, space, decisions, protect).run(recording, labels)
        for mode, recording in recordings.items()
    }
    everything = np.arange(len(space), dtype=np.int64)
    roots, class_of = np.unique(space.find(everything), return_inverse=True)
    to_classes = _ToClasses(class_of)
    finished: dict[Mode, Pass] = to_classes(passes)
    return ChannelGraph(
        layers=_layers(call for label_pass in finished.values() for call in label_pass.layers),
        tensors=to_classes(labels),
        shapes=shapes,
        pinned={int(class_of[root]): reason for root, reason in space.pin_reasons().items()},
        classes=len(roots),
        calls=finished[Mode(False)].calls,
        contractions=finished[Mode(False)].contractions,
        inputs=inputs,
        passes=finished,
    )


def _modes(model: nn.Module, switches: Mapping[str, tuple[Any, ...]]) -> list[Mode]:
    """Return the model's own state in eval and train mode, then each other value of a switch."""
    modes = [Mode(False), Mode(True)]
    for name, values in switches.items():
        module, _, attribute = name.rpartition(".")
        try:
            present = getattr(model.get_submodule(module), attribute)
        except AttributeError as error:
            raise UsageError(
                f"switch '{name}' must be an attribute of a module: {error}"
            ) from error
        modes += [
            Mode(t, (name, value)) for value in values if value != present for t in (False, True)
        ]
    return modes


def _unreached(model: nn.Module, graph: ChannelGraph) -> list[str]:
    """Return a note that names the layers that no traced forward calls, if there are any."""
    reached = {name.partition("#")[0] for name in graph.layers}
    missed = [n for n, module in model.named_modules() if is_layer(module) and n not in reached]
    if not missed:
        return []
    shown = first_of([f"'{name}'" for name in missed], 3)
    return [
        f"{len(missed)} layers that the forward does not call keep all their channels ({shown}); a "
        "forward that does will fail: name what switches it, such as "
        "switches={'decoder.deep_supervision': (True, False)}"
    ]


def _initial_dims(model: nn.Module, name: str, tensor: TensorShape, space: LabelSpace) -> Dims:
    """Return fresh labels for every dimension that could shrink.

    The kernel of a convolution never does, and leaving it unlabelled lets weights be flattened
    (spectral norm) without confusion.
    """
    owner = model.get_submodule(owner_of(name))
    tracked = 2 if isinstance(owner, nn.modules.conv._ConvNd) else len(tensor.shape)
    return tuple(
        space.fresh(size) if size > 1 and i < tracked else None
        for i, size in enumerate(tensor.shape)
    )


class _ToClasses:
    """Puts classes in place of labels, anywhere in sequences, mappings and data classes."""

    def __init__(self, class_of: LabelArray) -> None:
        self._class_of = class_of
        # The labels of a dimension go through many operations as one array, and stay one.
        self._done: dict[int, LabelArray] = {}

    def __call__(self, value: Any) -> Any:
        if value is None or isinstance(value, (int, str)):
            return value
        if isinstance(value, np.ndarray):
            classes = self._done.get(id(value))
            if classes is None:
                classes = self._done[id(value)] = self._class_of[value]
            return classes
        if isinstance(value, Record):  # by far the most
            outputs = ((shape, tuple(map(self, dims))) for shape, dims in value.outputs)
            return replace(value, outputs=tuple(outputs))
        if isinstance(value, (list, tuple)):
            return type(value)(map(self, value))
        if isinstance(value, Mapping):
            return {key: self(item) for key, item in value.items()}
        if is_dataclass(value) and not isinstance(value, type):
            return replace(value, **{f.name: self(getattr(value, f.name)) for f in fields(value)})
        return value


def _layers(calls: Iterable[LayerCall]) -> dict[str, Layer]:
    """Return layers by name; parts of one parameter used as several layers are numbered from #2 on.

    A single channel has no label of its own, so every call of its layer gives it another class.
    """
    layers: dict[str, Layer] = {}
    for call in calls:
        name, copies = call.name, 1
        while name in layers and not (
            np.array_equal(layers[name].neurons, call.out)
            or len(layers[name]) == len(call.out) == 1
        ):
            copies += 1
            name = f"{call.name}#{copies}"
        is_depthwise = call.groups > 1 and call.groups == len(call.inp)
        layers.setdefault(name, Layer(name, call.out, call.inp, call.groups, is_depthwise))
    return layers


def _random_half(graph: ChannelGraph, seed: int) -> Alive:
    """Keep about half of the removable classes, and at least one neuron of every layer."""
    random = np.random.default_rng(seed)
    alive = ~graph.removable | (random.random(graph.classes) < 0.5)
    for layer in graph.layers.values():
        if not alive[layer.neurons].any():
            alive[layer.neurons[random.integers(len(layer))]] = True
    return alive


def slim_meta_copy(model: nn.Module, graph: ChannelGraph, alive: Alive) -> nn.Module:
    """Return the slim model without memory: meta tensors of the right shapes."""

    def replace(name: str, tensor: Tensor) -> Tensor:
        shape = slim_shape(graph.extent(name), alive)
        return torch.empty(shape, dtype=tensor.dtype, device="meta")

    return rebuild_slim(model, graph, alive, replace)


def rebuild_slim(
    model: nn.Module, graph: ChannelGraph, alive: Alive, replace: Callable[[str, Tensor], Tensor]
) -> nn.Module:
    """Return a copy of a model with the living channels, and with counts that agree with them."""
    widths: dict[str, int] = {}  # channels that enter each leaf module, where they can be fewer
    for call in (call for label_pass in graph.passes.values() for call in label_pass.calls):
        channels = call.inputs[_CHANNELS.get(call.kind, 1)] if len(call.inputs) > 1 else 0
        if not isinstance(channels, int):
            widths[call.name] = int(alive[channels].sum())
    slim = rebuild(model, replace, widths)
    _update_channel_counts(slim, graph, alive)
    return slim


def _update_channel_counts(slim: nn.Module, graph: ChannelGraph, alive: Alive) -> None:
    """Bring the channel counts that a slim model's own modules store in line with its channels.

    An attribute follows if it holds, in the full network, the number of channels that enter or
    leave its module, or a list of them for several tensors; or the shape of a weight of that
    module. What two of these disagree on stays.
    """
    found: dict[tuple[str, str], list[Any]] = {}
    for path, tensor in named_tensors(slim):
        owner, shape = owner_of(path), graph.shapes[path].shape
        stored = vars(slim.get_submodule(owner))
        for name in _SHAPE_ATTRIBUTES & stored.keys():
            value = stored[name]
            if isinstance(value, int) and value == math.prod(shape):
                found.setdefault((owner, name), []).append(tensor.numel())
            elif isinstance(value, (list, tuple)) and tuple(value) == shape:
                found.setdefault((owner, name), []).append(type(value)(tensor.shape))
    for call in (call for label_pass in graph.passes.values() for call in label_pass.channels):
        stored = vars(slim.get_submodule(call.name))
        for name in _COUNTING_ATTRIBUTES.keys() & stored.keys():
            value, extent = stored[name], getattr(call, _COUNTING_ATTRIBUTES[name])
            full, counts = slim_shape(extent, graph.all_alive()), slim_shape(extent, alive)
            if isinstance(value, int) and full[:1] == (value,):
                found.setdefault((call.name, name), []).append(counts[0])
            elif isinstance(value, (list, tuple)) and tuple(value) == full:
                found.setdefault((call.name, name), []).append(type(value)(counts))
    for (path, name), values in found.items():
        if all(value == values[0] for value in values):
            setattr(slim.get_submodule(path), name, values[0])


def _learn(failure: Misreading | Divergence, decisions: Decisions) -> str | None:
    """Take back the reading, or pin the channels, that turned out to be wrong.

    Returns a note for the user, if channels had to be pinned.
    """
    what = str(failure)
    read = failure if isinstance(failure, Misreading) else failure.record
    if read is not None and read.reading is not None:
        decisions.rejected[read.site].add(read.reading)
        if isinstance(failure, Divergence):  # says more than that channels were misread
            decisions.failures[read.site] = what
        if decisions.rejected[read.site] < set(decisions.readings[read.site]):
            return None  # there are others to try
        what = decisions.failures.get(read.site, what)
    elif read is not None and read.site not in decisions.pinned_sites:
        decisions.pinned_sites.add(read.site)
    elif isinstance(failure, Divergence) and failure.kind not in decisions.pinned_kinds:
        decisions.pinned_kinds.add(failure.kind)
    else:
        raise TraceError(
            f"{what}; protect the layers that feed it, or whose channels it counts "
            f"({name_settings(protect=['NAME'])})"
        )
    return f"{what}: the channels concerned stay"
