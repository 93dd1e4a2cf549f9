"""The label pass: one forward on fake tensors that finds out which channels belong together.

Every operation that the forward calls is intercepted below autograd; its rule says how the labels
of its inputs become those of its outputs, and unites what must live or die together. Any Python
control flow works, nothing is allocated, no weight is touched.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakTensorKeyDictionary

from ranp.errors import RanpError, TraceError
from ranp.graph.inputs import Inputs, TensorShape
from ranp.graph.labels import Dim, Dims, LabelArray, LabelSpace, unlabelled
from ranp.graph.operation import RULES, Operation, tensors_in

# Where an operation stands: the class of the module that called it, its number among the
# operations of that call, its name. The same line of code has the same site in every instance.
Site = tuple[str, int, str]
Extent = tuple[int | LabelArray, ...]


@dataclass
class Decisions:
    """What earlier passes learned about a network (see `ranp.graph.probe`)."""

    candidate: dict[Site, int] = field(default_factory=dict)
    exhausted: set[Site] = field(default_factory=set)
    pinned_sites: set[Site] = field(default_factory=set)
    pinned_modules: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Record:
    """One operation of the pass, for the check pass to compare with."""

    name: str
    site: Site
    module: str
    inputs: tuple[Dims, ...]
    outputs: tuple[tuple[tuple[int, ...], Dims], ...]


@dataclass(frozen=True)
class LayerCall:
    """A convolution or linear layer at work: the labels of its neurons and of its inputs."""

    name: str
    out: LabelArray
    inp: LabelArray
    groups: int


@dataclass(frozen=True)
class ModuleCall:
    """A call of a leaf module: extents of its first input and of its first output tensor."""

    name: str
    kind: str
    inputs: Extent
    output: Extent


@dataclass(frozen=True)
class Contraction:
    """A sum of products (convolution, matrix product); its multiply-adds are prod(extent)."""

    module: str
    extent: Extent


@dataclass(frozen=True)
class Pass:
    """Everything one forward left behind."""

    records: tuple[Record, ...]
    layers: tuple[LayerCall, ...]
    calls: tuple[ModuleCall, ...]
    contractions: tuple[Contraction, ...]
    module_inputs: Mapping[str, tuple[Dims, ...]]


@dataclass
class _Frame:
    path: str
    kind: str
    operations: int = 0


class ModuleStack:
    """Knows which module is running; after an exception, which one raised it."""

    def __init__(self, model: nn.Module) -> None:
        # A module reached under several names is called by its first one.
        self.names = {id(module): name for name, module in model.named_modules()}
        self.frames: list[_Frame] = [_Frame("", type(model).__qualname__)]

    @property
    def top(self) -> _Frame:
        """The module that is running."""
        return self.frames[-1]

    def site(self, operation: str) -> Site:
        """The site of the next operation; counts it."""
        self.top.operations += 1
        return (self.top.kind, self.top.operations, operation)

    def enter(self, module: nn.Module, inputs: Any) -> None:
        """A module begins."""
        if id(module) in self.names:
            self.frames.append(_Frame(self.names[id(module)], type(module).__qualname__))

    def leave(self, module: nn.Module, inputs: Any, output: Any) -> None:
        """A module ends; one that raises never does, and so stays on top."""
        if id(module) in self.names:
            self.frames.pop()

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Follows module calls by global hooks, so that the model itself is not touched."""
        hooks = nn.modules.module
        with ExitStack() as stack:
            stack.callback(hooks.register_module_forward_pre_hook(self.enter).remove)
            stack.callback(hooks.register_module_forward_hook(self.leave).remove)
            yield


class Propagator(TorchDispatchMode):
    """Runs a model's forward and propagates labels through it."""

    def __init__(
        self,
        model: nn.Module,
        space: LabelSpace,
        decisions: Decisions,
        protect: tuple[str, ...] = (),
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.model = model
        self.space = space
        self.decisions = decisions
        self.protect = protect
        self.stack = ModuleStack(model)
        self.records: list[Record] = []
        self.layers: list[LayerCall] = []
        self.calls: list[ModuleCall] = []
        self.contractions: list[Contraction] = []
        self.module_inputs: dict[str, tuple[Dims, ...]] = {}
        self._weights: dict[str, Tensor] = {}
        self._dims = WeakTensorKeyDictionary()
        self._site: Site = ("", 0, "")

    # What rules use.

    def dims(self, tensor: Tensor) -> Dims:
        """The labels of a tensor's dimensions."""
        known: Dims | None = self._dims.get(tensor)
        return unlabelled(tensor.shape) if known is None else known

    def label(self, tensor: Tensor, dims: Dims) -> None:
        """Gives a tensor its labels."""
        assert len(dims) == tensor.dim(), (dims, tensor.shape)
        self._dims[tensor] = dims

    def pin(self, dim: Dim, reason: str) -> None:
        """Pins the slots of a dimension, naming the module at work."""
        where = self.stack.top.path or "the network's forward"
        self.space.pin(dim, f"{reason} in {where}")

    def choose(self, candidates: int) -> int | None:
        """Which of several readings of this operation to take; None when all have failed.

        A reshape does not say which of its factors will shrink with the channels. The first
        candidate is taken until the probe shows that it is wrong at this site.
        """
        chosen = self.decisions.candidate.setdefault(self._site, 0)
        if chosen < candidates:
            return chosen
        self.decisions.exhausted.add(self._site)
        return None

    def add_layer(self, weight: Tensor, out: LabelArray, inp: LabelArray, groups: int) -> None:
        """Notes that the current module applied a convolution or linear map."""
        path = self.stack.top.path
        module = self.model.get_submodule(path)
        if not isinstance(module, (nn.Linear, nn.modules.conv._ConvNd)):
            names = [
                f"{path}.{n}" if path else n for n, _ in module.named_parameters(recurse=False)
            ]
            path = next((name for name in names if self._weights.get(name) is weight), path)
        self.space.mark_neurons(out)
        if any(fnmatchcase(path, pattern) for pattern in self.protect):
            self.space.pin(out, "protected by the user")
        self.layers.append(LayerCall(path, out, inp, groups))

    def add_contraction(self, *extent: int | LabelArray) -> None:
        """Notes a sum of products for the resource counters."""
        self.contractions.append(Contraction(self.stack.top.path, extent))

    # The pass.

    def run(
        self, tensors: Mapping[str, TensorShape], labels: Mapping[str, Dims], inputs: Inputs
    ) -> Pass:
        """One forward in the model's current mode.

        Args:
            tensors: The shapes of the parameters and buffers by name.
            labels: Their labels.
            inputs: What to call the model with.
        """
        with fake_forward(self.stack), self._watch_calls():
            self._weights = {name: shape.materialize() for name, shape in tensors.items()}
            for name, tensor in self._weights.items():
                self.label(tensor, labels[name])
            args, kwargs = inputs.materialize()
            with self:
                output = torch.func.functional_call(self.model, self._weights, args, kwargs)
        for tensor in tensors_in(_as_tree(output)):
            for dim in self.dims(tensor):
                self.space.pin(dim, "it is the network's output")
        return Pass(
            tuple(self.records),
            tuple(self.layers),
            tuple(self.calls),
            tuple(self.contractions),
            self.module_inputs,
        )

    @contextmanager
    def _watch_calls(self) -> Iterator[None]:
        hooks = nn.modules.module
        with ExitStack() as stack:
            stack.callback(hooks.register_module_forward_pre_hook(self._before_module).remove)
            stack.callback(hooks.register_module_forward_hook(self._after_module).remove)
            yield

    def _before_module(self, module: nn.Module, inputs: Any) -> None:
        path = self.stack.names.get(id(module))
        if path is None:
            return
        dims = tuple(self.dims(tensor) for tensor in tensors_in(inputs))
        self.module_inputs[path] = (*self.module_inputs.get(path, ()), *dims)
        if path in self.decisions.pinned_modules:
            own = [self.dims(t) for n, t in self._weights.items() if n.rpartition(".")[0] == path]
            for dim in (d for tensor in (*dims, *own) for d in tensor):
                self.space.pin(dim, self.decisions.pinned_modules[path])

    def _after_module(self, module: nn.Module, inputs: Any, output: Any) -> None:
        path = self.stack.names.get(id(module))
        if path is None or ".parametrizations" in path or not is_leaf(module):
            return
        first_in = next(iter(tensors_in(inputs)), None)
        first_out = next(iter(tensors_in(output)), None)
        if first_in is not None and first_out is not None:
            kind = type(module).__name__.removeprefix("Parametrized")
            call = ModuleCall(path, kind, self.extent(first_in), self.extent(first_out))
            self.calls.append(call)

    def extent(self, tensor: Tensor) -> Extent:
        """A tensor's shape, with labels in the place of the sizes that can shrink."""
        pairs = zip(tensor.shape, self.dims(tensor), strict=True)
        return tuple(size if dim is None else dim for size, dim in pairs)

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        label_rule = (
            RULES.get(func._schema.name) if isinstance(func, torch._ops.OpOverload) else None
        )
        if label_rule is None:
            if func is not torch.ops.prim.device.default:
                with self:  # operations made of simpler ones come back here piece by piece
                    result = func.decompose(*args, **kwargs)
                if result is not NotImplemented:
                    return result
            if torch.Tag.pointwise in func.tags:
                label_rule = RULES["aten::pointwise"]
        self._site = self.stack.site(func._schema.name)
        out = func(*args, **kwargs)
        operation = Operation.bind(func, args, kwargs, out)
        if not operation.outputs:
            return out
        self._propagate(operation, label_rule)
        return out

    def _propagate(self, operation: Operation, label_rule: Any) -> None:
        inputs = tuple(self.dims(tensor) for tensor in operation.inputs)
        if label_rule is None:
            self._refuse_unless_fixed(operation, inputs)
            dims = [unlabelled(tensor.shape) for tensor in operation.outputs]
        else:
            result = label_rule(self, operation)
            dims = result if isinstance(result, list) else [result] * len(operation.outputs)
        for tensor, labels in zip(operation.outputs, dims, strict=True):
            self.label(tensor, labels)
        if self._site in self.decisions.pinned_sites:
            for dim in (d for tensor in (*inputs, *dims) for d in tensor):
                self.pin(dim, f"channel numbers are fixed by the code ({operation.name[6:]})")
        shapes = (tuple(tensor.shape) for tensor in operation.outputs)
        self.records.append(
            Record(
                operation.name,
                self._site,
                self.stack.top.path,
                inputs,
                tuple(zip(shapes, dims, strict=True)),
            )
        )

    def _refuse_unless_fixed(self, operation: Operation, inputs: tuple[Dims, ...]) -> None:
        """An operation without a rule may only meet slots that stay anyway."""
        labelled = [dim for tensor in inputs for dim in tensor if dim is not None]
        for dim in labelled:
            if self.space.prunable(dim).any():
                mine = set(self.space.find(dim).tolist())
                layers = [
                    call.name
                    for call in self.layers
                    if mine.intersection(self.space.find(call.out).tolist())
                ]
                names = ", ".join(repr(name) for name in dict.fromkeys(layers))
                where = self.stack.top.path or type(self.model).__name__
                raise TraceError(
                    f"no rule for the operation {operation.name} in module '{where}'; "
                    f"either protect the layers that feed it (protect=[{names}]) or add a rule "
                    "with ranp.graph.rule"
                )
        for dim in labelled:
            self.pin(dim, f"it meets {operation.name}, which has no rule,")


def is_leaf(module: nn.Module) -> bool:
    """Whether a module has no modules of its own; parametrizations do not count as such."""
    return all(name == "parametrizations" for name, _ in module.named_children())


def _as_tree(output: Any) -> Any:
    """Opens outputs that are objects (data classes of named tensors)."""
    return (
        vars(output) if hasattr(output, "__dict__") and not isinstance(output, Tensor) else output
    )


@contextmanager
def fake_forward(stack: ModuleStack) -> Iterator[None]:
    """All that a forward on fake tensors runs under; errors come out as `TraceError`."""
    fast_path = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)  # it hides attention in one opaque operation
    try:
        with ExitStack() as contexts:
            contexts.enter_context(stack.watch())
            contexts.enter_context(warnings.catch_warnings())
            warnings.simplefilter("ignore")  # they are about values, and there are none here
            contexts.enter_context(torch.no_grad())
            # Below autograd, tensors keep their identity through views, and operations arrive
            # whole (`instance_norm` as such, not as the reshapes it is made of).
            contexts.enter_context(torch._C._AutoDispatchBelowAutograd())
            contexts.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
            yield
    except RanpError:
        raise
    except Exception as error:
        where = stack.top.path or "the network's forward"
        reason = str(error).strip().split("\n")[0][:300]
        raise TraceError(
            f"the forward fails on a trial run in {where}: {type(error).__name__}: {reason}; "
            "check the example input"
        ) from error
    finally:
        torch.backends.mha.set_fastpath_enabled(fast_path)
