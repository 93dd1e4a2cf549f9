"""Captures a forward as a program of torch.export, without the model's code."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.utils import _pytree as pytree

from ranp.errors import TraceError, UsageError
from ranp.exporting.arguments import Arguments, dim_names, is_dynamic
from ranp.exporting.quiet import quiet, reraise_as


def capture(model: nn.Module, arguments: Arguments, *, dynamic: bool) -> ExportedProgram:
    """Capture a network by torch.export, in its current mode (train or eval).

    With `dynamic`, batch and space may have other sizes later.

    Raises:
        TraceError: It does something that torch.export cannot follow.
        UsageError: Sizes were to vary, and the network fixes one.
    """
    what = f"{type(model).__name__} cannot be exported"
    advice = "change what its forward does there, or deploy plan and weights with its code"
    dynamic_shapes = _dynamic_shapes(arguments) if dynamic else None
    with reraise_as(TraceError, what, advice), quiet():
        program = torch.export.export(
            model, arguments.args, arguments.kwargs, dynamic_shapes=dynamic_shapes
        )
    if dynamic:
        _check_dynamic(model, program)
    _leave_inputs_alone(program.graph_module.graph)
    _strip_sources(program)
    return program


def input_sizes(program: ExportedProgram) -> dict[str, tuple[int | str, ...]]:
    """Return names and sizes of a program's inputs; a size that may vary has a name.

    Sizes that must be equal have the same name.
    """
    called: dict[str, str] = {}
    found: dict[str, tuple[int | str, ...]] = {}
    for name, shape in _inputs(program).items():
        sizes: list[int | str] = []
        for size, wanted in zip(shape, dim_names(len(shape)), strict=True):
            if isinstance(size, int):
                sizes.append(size)
                continue
            if str(size) not in called:
                taken = wanted in called.values()
                called[str(size)] = f"{name}_{wanted}" if taken else wanted
            sizes.append(called[str(size)])
        found[name] = tuple(sizes)
    return found


def _dynamic_shapes(arguments: Arguments) -> Any:
    """Return `dynamic_shapes` of torch.export: every size but channels may vary."""

    def dynamic_dims(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return None
        return {dim: Dim.AUTO for dim in range(leaf.dim()) if is_dynamic(dim)}

    return pytree.tree_map(dynamic_dims, arguments.kwargs or arguments.args)


def _inputs(program: ExportedProgram) -> dict[str, list[int | torch.SymInt]]:
    """Return the sizes of all inputs that are tensors; symbols where they may vary."""
    names = set(program.graph_signature.user_inputs)
    nodes = {node.name: node.meta.get("val") for node in program.graph.find_nodes(op="placeholder")}
    return {n: list(x.shape) for n, x in nodes.items() if n in names and isinstance(x, Tensor)}


def _check_dynamic(model: nn.Module, program: ExportedProgram) -> None:
    for name, shape in _inputs(program).items():
        for dim, size in enumerate(shape):
            if is_dynamic(dim) and isinstance(size, int):
                called = dim_names(len(shape))[dim]
                raise UsageError(
                    f"{type(model).__name__} works only where the {called} of '{name}' is "
                    f"{size}: export it without dynamic, at the size it will have"
                )


def _leave_inputs_alone(graph: torch.fx.Graph) -> None:
    """Compute in new memory what was computed in place, where nobody can see a difference.

    Converters take an activation in place apart, into comparisons and products, before they put it
    together again; where sizes are symbols, that is most of their time.
    """
    for node in graph.nodes:
        functional = _functional(node.target)
        if functional is not None and node.args and _is_private(node.args[0]):
            node.target = functional


def _functional(target: Any) -> torch._ops.OpOverload | None:
    """Return the operation of the same arguments that leaves them alone, if there is one."""
    if not isinstance(target, torch._ops.OpOverload) or target.namespace != "aten":
        return None
    name = target._schema.name.removeprefix("aten::")
    packet = getattr(torch.ops.aten, name[:-1], None) if name.endswith("_") else None
    return getattr(packet, target._overloadname, None)


def _is_private(value: Any) -> bool:
    """Return whether a value is read by one operation, and shares its memory with none other."""
    if not isinstance(value, torch.fx.Node) or len(value.users) != 1:
        return False
    made_by = value.target
    if not isinstance(made_by, torch._ops.OpOverload):
        return False
    if any(returned.alias_info is not None for returned in made_by._schema.returns):
        return False
    # A composite operation may hand back what it was given and not say so: dropout does.
    composite = torch._C.DispatchKey.CompositeImplicitAutograd
    return not made_by.has_kernel_for_dispatch_key(composite) or all(
        len(given.users) == 1 for given in value.all_input_nodes
    )


def _strip_sources(program: ExportedProgram) -> None:
    """Remove paths of source files on this machine, and the example, from what is written."""
    program.example_inputs = None
    for module in program.graph_module.modules():
        if isinstance(module, torch.fx.GraphModule):
            for node in module.graph.nodes:
                node.meta.pop("stack_trace", None)
