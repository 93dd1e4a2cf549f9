"""From a model to its channel graph: label pass, probe, and again until the probe agrees."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase

import numpy as np
import torch
from torch import Tensor, nn

import ranp.graph.rules  # noqa: F401  (fills the registry of rules)
from ranp.errors import TraceError, UsageError, suggest
from ranp.graph.channel_graph import Alive, ChannelGraph, Layer
from ranp.graph.inputs import ExampleInput, Inputs, TensorShape, describe_inputs
from ranp.graph.labels import Dims, LabelArray, LabelSpace
from ranp.graph.propagation import (
    Contraction,
    Decisions,
    Extent,
    ModuleCall,
    Pass,
    Propagator,
    Record,
)
from ranp.graph.replay import Divergence, check
from ranp.graph.surgery import mode, named_tensors, rebuild

_MOST_PROBES = 200


def build_graph(
    model: nn.Module, example_input: ExampleInput, *, protect: Iterable[str] = ()
) -> ChannelGraph:
    """Finds out which channels of a model belong together.

    The model is traced on fake tensors in eval and in train mode (deep supervision heads exist in
    only one of them), so neither data nor memory is needed, and the model is not changed. Then a
    trial network with half of all removable channels is traced: wherever the model's code turns
    out to hold a channel number of its own, the channels in question are pinned and noted.

    Args:
        model: Any module.
        example_input: A tensor, a shape, a sequence of arguments, or a mapping of keyword
            arguments; only shapes matter.
        protect: Names of layers (or patterns such as "decoder.*") whose neurons must all stay.

    Raises:
        TraceError: The forward fails, or uses an operation that has no rule.
        UsageError: A protected name matches nothing.
    """
    model = unwrap(model)
    inputs = describe_inputs(model, example_input)
    patterns = _checked_patterns(model, protect)
    decisions = Decisions()
    notes: list[str] = []
    for _ in range(_MOST_PROBES):
        graph = _trace(model, inputs, decisions, patterns, notes)
        if not graph.removable.any():
            return graph
        trial = _random_half(graph)
        try:
            check(_shadow(model, graph, trial), graph, trial)
        except Divergence as divergence:
            notes.append(_learn(divergence, graph, decisions))
            continue
        return graph
    raise TraceError(
        f"{type(model).__name__}: after {_MOST_PROBES} trials its forward still refuses smaller "
        f"channel numbers ({notes[-1]}); protect the layers concerned"
    )


def unwrap(model: nn.Module) -> nn.Module:
    """The module inside of `torch.compile` and (distributed) data parallel wrappers."""
    while True:
        inner = getattr(model, "_orig_mod", None)
        if inner is None and isinstance(
            model, (nn.DataParallel, nn.parallel.DistributedDataParallel)
        ):
            inner = model.module
        if not isinstance(inner, nn.Module):
            return model
        model = inner


def _checked_patterns(model: nn.Module, protect: Iterable[str]) -> tuple[str, ...]:
    names = [name for name, _ in model.named_modules() if name]
    patterns: list[str] = []
    for pattern in protect:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise UsageError(f"no module is called '{pattern}'.{suggest(pattern, names)}")
        patterns += [pattern, f"{pattern}.*"]  # what is inside of a protected module is protected
    return tuple(patterns)


def _trace(
    model: nn.Module,
    inputs: Inputs,
    decisions: Decisions,
    protect: tuple[str, ...],
    notes: Sequence[str],
) -> ChannelGraph:
    """The label pass in both modes, over one space of labels."""
    space = LabelSpace()
    shapes = {name: TensorShape.of(tensor) for name, tensor in named_tensors(model)}
    labels = {name: _initial_dims(model, name, shape, space) for name, shape in shapes.items()}
    # A structural copy is traced, so that whatever a forward stores in its modules stays there.
    shadow = rebuild(model, lambda _, tensor: tensor.to("meta"), {})
    passes: dict[bool, Pass] = {}
    for training in (False, True):
        propagator = Propagator(shadow, space, decisions, protect)
        try:
            with mode(shadow, training):
                passes[training] = propagator.run(shapes, labels, inputs)
        except TraceError as error:
            # Train mode can be out of reach of the example (batch norm over a single value).
            if not training or not isinstance(error.__cause__, ValueError):
                raise
    return _assemble(shapes, space, labels, passes, inputs, notes)


def _initial_dims(model: nn.Module, name: str, tensor: TensorShape, space: LabelSpace) -> Dims:
    """Fresh labels for every dimension that could shrink.

    The kernel of a convolution never does, and leaving it unlabelled lets weights be flattened
    (spectral norm) without confusion.
    """
    module, parametrized, _ = name.partition(".parametrizations.")
    owner = model.get_submodule(module if parametrized else name.rpartition(".")[0])
    tracked = 2 if isinstance(owner, nn.modules.conv._ConvNd) else len(tensor.shape)
    return tuple(
        space.fresh(size) if size > 1 and i < tracked else None
        for i, size in enumerate(tensor.shape)
    )


def _assemble(
    shapes: Mapping[str, TensorShape],
    space: LabelSpace,
    labels: Mapping[str, Dims],
    passes: Mapping[bool, Pass],
    inputs: Inputs,
    notes: Sequence[str],
) -> ChannelGraph:
    """Numbers the classes and rewrites everything from labels to classes."""
    roots, number_of = np.unique(
        space.find(np.arange(len(space), dtype=np.int64)), return_inverse=True
    )

    def of(labels: LabelArray) -> LabelArray:
        result: LabelArray = number_of[labels]
        return result

    def dims(dims: Dims) -> Dims:
        return tuple(None if dim is None else of(dim) for dim in dims)

    def extent(extent: Extent) -> Extent:
        return tuple(size if isinstance(size, int) else of(size) for size in extent)

    def whole(label_pass: Pass) -> Pass:
        return Pass(
            tuple(
                Record(
                    r.name,
                    r.site,
                    r.module,
                    tuple(dims(d) for d in r.inputs),
                    tuple((shape, dims(d)) for shape, d in r.outputs),
                )
                for r in label_pass.records
            ),
            label_pass.layers,
            tuple(
                ModuleCall(c.name, c.kind, extent(c.inputs), extent(c.output))
                for c in label_pass.calls
            ),
            tuple(Contraction(c.module, extent(c.extent)) for c in label_pass.contractions),
            {
                name: tuple(dims(d) for d in value)
                for name, value in label_pass.module_inputs.items()
            },
        )

    layers: dict[str, Layer] = {}
    for call in (call for label_pass in passes.values() for call in label_pass.layers):
        neurons, feeding = of(call.out), of(call.inp)
        name, copies = call.name, 1
        while name in layers and not np.array_equal(layers[name].neurons, neurons):
            copies += 1
            name = f"{call.name}#{copies}"
        follows = call.groups > 1 and call.groups == len(feeding)
        layers.setdefault(name, Layer(name, neurons, feeding, call.groups, follows))

    finished = {training: whole(label_pass) for training, label_pass in passes.items()}
    reasons = {int(number_of[root]): reason for root, reason in space.pin_reasons().items()}
    return ChannelGraph(
        layers=layers,
        tensors={name: dims(d) for name, d in labels.items()},
        shapes=shapes,
        pinned=reasons,
        classes=len(roots),
        calls=finished[False].calls,
        contractions=finished[False].contractions,
        inputs=inputs,
        notes=tuple(dict.fromkeys(notes)),
        passes=finished,
    )


def _random_half(graph: ChannelGraph) -> Alive:
    """Keeps about half of the removable classes, and at least one neuron of every layer."""
    random = np.random.default_rng(0)
    alive = ~graph.removable | (random.random(graph.classes) < 0.5)
    for layer in graph.layers.values():
        if not alive[layer.neurons].any():
            alive[layer.neurons[random.integers(len(layer))]] = True
    return alive


def _shadow(model: nn.Module, graph: ChannelGraph, alive: Alive) -> nn.Module:
    """The slim model without memory: meta tensors of the right shapes."""

    def replace(name: str, tensor: Tensor) -> Tensor:
        pairs = zip(tensor.shape, graph.tensors[name], strict=True)
        shape = [size if dim is None else int(alive[dim].sum()) for size, dim in pairs]
        return torch.empty(shape, dtype=tensor.dtype, device="meta")

    return rebuild(model, replace, widths(graph, alive))


def widths(graph: ChannelGraph, alive: Alive) -> dict[str, int]:
    """The channels that enter each leaf module of the slim model."""
    result: dict[str, int] = {}
    for label_pass in graph.passes.values():
        for call in label_pass.calls:
            labelled = [size for size in call.inputs if not isinstance(size, int)]
            if len(labelled) == 1:
                result[call.name] = int(alive[labelled[0]].sum())
    return result


def _learn(divergence: Divergence, graph: ChannelGraph, decisions: Decisions) -> str:
    """Takes back the reading, or pins the channels, that the trial network proved wrong."""
    record = divergence.record
    undecided = set(decisions.candidate) - decisions.exhausted
    if record is not None and record.site in undecided:
        decisions.candidate[record.site] += 1
    elif record is not None and record.site not in decisions.pinned_sites:
        decisions.pinned_sites.add(record.site)
    elif divergence.module not in decisions.pinned_modules:
        decisions.pinned_modules[divergence.module] = "channel numbers are fixed by the code"
    else:
        raise TraceError(f"{divergence}; protect the layers that feed it")
    return str(divergence)
