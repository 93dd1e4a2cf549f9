"""Running a forward on fake tensors, with every operation and module call intercepted.

Nothing is allocated and no weight is touched; any Python control flow works that does not ask for
the values of tensors.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses import fake_tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from ranp.errors import RanpError, TraceError
from ranp.graph.fake_tensors import device_of, fake_empty, quiet_fake_mode, view_of
from ranp.graph.inputs import Inputs, TensorShape
from ranp.graph.known_outputs import known_output
from ranp.graph.known_values import VALUE_DEPENDENT
from ranp.graph.operation import RULES, Operation, operands
from ranp.graph.surgery import swapped_tensors, training_mode
from ranp.user_code import describe_failure, failing_line

# Where an operation stands: the class of the module that called it, its number among the
# operations of that call, its name. The same line of code has the same site in every instance.
Site = tuple[str, int, str]


@dataclass(frozen=True)
class Mode:
    """How a forward is traced.

    Attributes:
        training: Whether in train mode.
        switch: An attribute such as "decoder.deep_supervision", and the value it is set to; None
            where the model is traced as it is.
    """

    training: bool
    switch: tuple[str, Any] | None = None


@dataclass
class _Frame:
    path: str
    kind: str
    operations: int = 0


class Tracer(TorchDispatchMode):
    """Follows a forward: which module is running, which operations it calls.

    The model is run as it is, and what its forward stores in its modules stays there: give a copy
    without data (`meta_copy`).

    Subclasses see modules begin and end, and every operation after it ran.

    Attributes:
        model: The model.
        site: Where the operation that is running stands; None between operations.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.model = model
        self.site: Site | None = None
        # A module reached under several names is called by its first one.
        self._paths = {id(module): name for name, module in self.model.named_modules()}
        # A module that raises never ends, and so stays on top.
        self._frames = [_Frame("", type(model).__qualname__)]

    def tensors_made(self, tensors: Mapping[str, Tensor]) -> None:
        """Handle the model's parameters and buffers, now fake tensors."""

    def module_begins(self, path: str, inputs: Any) -> None:
        """Handle the call of a module."""

    def module_ends(self, path: str, module: nn.Module, inputs: Any, output: Any) -> None:
        """Handle the return of a module."""

    def operation_ends(self, operation: Operation, site: Site) -> None:
        """Handle an operation after it ran."""

    @property
    def path(self) -> str:
        """The module that is running."""
        return self._frames[-1].path

    @property
    def kind(self) -> str:
        """Its class."""
        return self._frames[-1].kind

    @property
    def place(self) -> str:
        """The module that is running, for messages."""
        return describe_place(self.path)

    def forward(self, tensors: Mapping[str, TensorShape], inputs: Inputs, mode: Mode) -> Any:
        """Call the model; a forward that raises comes out as `TraceError`."""
        if mode.switch is not None:
            module, _, name = mode.switch[0].rpartition(".")
            setattr(self.model.get_submodule(module), name, mode.switch[1])
        try:
            with (
                _fake_tensors() as fake_mode,
                self._module_hooks(),
                training_mode(self.model, mode.training),
            ):
                weights = {name: _fake(shape, fake_mode) for name, shape in tensors.items()}
                self.tensors_made(weights)
                args, kwargs = inputs.materialize()
                with swapped_tensors(self.model, weights), self:
                    return self.model(*args, **kwargs)
        except RanpError:
            raise
        except Exception as error:
            if isinstance(error, VALUE_DEPENDENT) or ".numpy()" in str(error):
                raise TraceError(
                    f"{self.place} needs the values of a tensor{failing_line(error)}, "
                    "but tracing only has shapes; branch on shapes, or outside of the forward"
                ) from error
            raise TraceError(
                f"the forward fails in {self.place}: {describe_failure(error)}; "
                "check the example input"
            ) from error

    @contextmanager
    def _module_hooks(self) -> Iterator[None]:
        """Follow module calls by global hooks, so that the model itself is not touched."""

        def begin(module: nn.Module, inputs: Any) -> None:
            path = self._paths.get(id(module))
            if path is not None:
                self._frames.append(_Frame(path, type(module).__qualname__))
                self.module_begins(path, inputs)

        def end(module: nn.Module, inputs: Any, output: Any) -> None:
            path = self._paths.get(id(module))
            if path is not None:
                self.module_ends(path, module, inputs, output)
                self._frames.pop()

        hooks = nn.modules.module
        # A handle takes its hook away again when the block ends.
        with hooks.register_module_forward_pre_hook(begin), hooks.register_module_forward_hook(end):
            yield

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if (device := device_of(func, args)) is not None:
            return device
        kwargs = kwargs or {}
        name = func._schema.name
        if name not in RULES and _is_composed(func):
            with self:  # operations made of simpler ones come back here piece by piece
                return func.decompose(*args, **kwargs)
        frame = self._frames[-1]
        frame.operations += 1
        self.site = site = (frame.kind, frame.operations, name)
        out = self._call(func, args, kwargs)
        self.operation_ends(Operation.bind(func, args, kwargs, out), site)
        self.site = None
        return out

    def _call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        tensors = [*operands(args), *operands(kwargs.values())]
        if tensors and not any(isinstance(t, fake_tensor.FakeTensor) for t in tensors):
            # Tensors that a model keeps as plain attributes are real: what depends on them alone
            # is computed, so that a forward can take decisions by them.
            with _disable_current_modes():
                return func(*args, **kwargs)
        known = view_of(func, args, kwargs)
        if known is None:
            known = known_output(func, args, kwargs)
        return func(*args, **kwargs) if known is None else known


def describe_place(path: str) -> str:
    """Return the name of a module, for messages."""
    return f"'{path}'" if path else "the network's own forward"


@cache
def _is_composed(func: torch._ops.OpOverload) -> bool:
    """Return whether an operation is made of simpler ones."""
    return func._can_decompose()


def _fake(shape: TensorShape, mode: fake_tensor.FakeTensorMode) -> Tensor:
    """Return a fake tensor, created directly: every forward has hundreds of weights."""
    if shape.device.type == "meta":
        return shape.materialize()
    return fake_empty(mode, shape.shape, shape.dtype, shape.device)


@contextmanager
def _fake_tensors() -> Iterator[fake_tensor.FakeTensorMode]:
    """Set up what a forward on fake tensors runs under."""
    fast_path = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)  # it hides attention in one opaque operation
    try:
        # Below autograd, tensors keep their identity through views, and operations arrive whole
        # (`instance_norm` as such, not as the reshapes it is made of).
        with torch.no_grad(), torch._C._AutoDispatchBelowAutograd(), quiet_fake_mode() as mode:
            yield mode
    finally:
        torch.backends.mha.set_fastpath_enabled(fast_path)
