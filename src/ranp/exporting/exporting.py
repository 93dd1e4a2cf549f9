"""`ranp.export`: a network as one file, checked against the network before it gets its name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ranp._version import __version__
from ranp.errors import IntegrityError, RanpError, TraceError, UsageError
from ranp.exporting.arguments import Arguments, check_sizes, scaled
from ranp.exporting.capture import capture, input_sizes
from ranp.exporting.formats import FORMATS, USE_PT2, Format, Runner, find_format
from ranp.exporting.quiet import reraise_as
from ranp.files import atomic_write, canonical_json, ensure_directory
from ranp.graph import ExampleInput, unwrap
from ranp.graph.operation import tensors_in
from ranp.graph.surgery import training_mode
from ranp.resources.comparing import largest_difference
from ranp.slimming import Plan
from ranp.user_code import describe_failure

TOLERANCE = 1e-4
"""Largest difference between outputs of file and network, as a share of the largest output."""
_TYPES = (torch.float32, torch.float64)


@dataclass(frozen=True)
class Exported:
    """A file that runs without the network's code.

    Attributes:
        path: Path of the file.
        format: "onnx" or "pt2".
        file_bytes: Size of the file.
        parameters: Number of parameters of the network.
        difference: Largest difference between outputs of file and network, as a share of the
            largest output, over all inputs that were tried.
        inputs: Shape of every input by name; a size that may vary is given by a name.
        versions: Versions of the packages that wrote and checked the file; for ONNX also the opset.
    """

    path: Path
    format: Format
    file_bytes: int
    parameters: int
    difference: float
    inputs: Mapping[str, tuple[int | str, ...]]
    versions: Mapping[str, str]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return {**asdict(self), "path": str(self.path)}


def export(
    model: nn.Module,
    example_input: ExampleInput,
    path: str | Path,
    *,
    format: Format | None = None,
    dynamic: bool = False,
    plan: Plan | None = None,
) -> Exported:
    """Write a network to a file that runs without its code, and without ranp.

    Before it gets its name, the file is loaded again and run on random inputs. It is not kept if
    its outputs differ from the network's in eval mode by more than 1e-4 of the largest output.

    Args:
        model: Any network on the CPU, full or slim; it is not changed.
        example_input: A tensor, a shape, or the arguments of the network's forward.
        path: File name that ends in `.onnx` (for onnxruntime and others) or in `.pt2` (for
            `torch.export.load`).
        format: "onnx" or "pt2", if the suffix of the path does not say so.
        dynamic: Whether the file should take other batch and spatial sizes too, as far as the
            network does.
        plan: Plan of the slim network, to record in the file.

    Raises:
        TraceError: The network does something that cannot be exported.
        IntegrityError: The outputs of the file differ from the network's.
        UsageError: Sizes cannot vary; a package is missing; the path cannot be written.
    """
    path, model = Path(path), unwrap(model)
    name = find_format(path, format)
    kind = FORMATS[name]
    _check_model(model)
    if "\0" in str(path):
        raise UsageError(f"a path must have no null byte, got {str(path)!r}")
    if path.is_dir():
        raise UsageError(f"'{path}' is a directory; name the file to write in it")
    ensure_directory(path.parent)  # it says at once, not after a minute's work, that it cannot
    example = Arguments.of(model, example_input)
    with torch.random.fork_rng(), training_mode(model, False), torch.no_grad():
        trials = list(_trials(model, example, dynamic))
        expected = [_expected(model, arguments) for arguments in trials]
        program = capture(model, trials[0], dynamic=dynamic)
        versions = {"ranp": __version__, "torch": str(torch.__version__)}
        content = kind.write(program, _describe_origin(versions, plan))
        unable = f"{kind.runtime} cannot run what {type(model).__name__} does"
        with reraise_as(TraceError, unable, USE_PT2):
            run = kind.open(content)
        outputs = [_run(run, arguments) for arguments in trials]
        difference = max(map(largest_difference, outputs, expected))
        if difference > TOLERANCE:
            again = largest_difference(_expected(model, trials[0]), expected[0])
            raise _refusal(path, name, model, difference, is_random=again > TOLERANCE)
    with atomic_write(path) as file:
        file.write(content)
    return Exported(
        path=path,
        format=name,
        file_bytes=len(content),
        parameters=sum(p.numel() for p in model.parameters()),
        difference=difference,
        inputs=input_sizes(program),
        versions={**versions, **kind.versions(content)},
    )


def _describe_origin(versions: Mapping[str, str], plan: Plan | None) -> str:
    """Return what a file says of itself: what wrote it, and which plan made the network."""
    about: dict[str, Any] = {"schema": 1, "kind": "export", "versions": dict(versions)}
    if plan is not None:
        about |= {
            "network": plan.network,
            "method": plan.method,
            "sparsity": plan.settings.get("sparsity"),
            "plan": plan.sha256,
        }
    return canonical_json(about)


def _refusal(
    path: Path, format: Format, model: nn.Module, difference: float, *, is_random: bool
) -> RanpError:
    kind = type(model).__name__
    if is_random:
        return UsageError(
            f"the {kind} draws random numbers in eval mode, so that a file cannot be compared with "
            "it; export a deterministic network"
        )
    other = next(f".{name}" for name in FORMATS if name != format)
    return IntegrityError(
        f"'{path}' was not written: its outputs in {FORMATS[format].runtime} differ from those "
        f"of the {kind} by {difference:.0e} of the largest output ({TOLERANCE:.0e} is allowed); "
        f"try the other format, {other}"
    )


def _check_model(model: nn.Module) -> None:
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.device.type != "cpu":
            raise UsageError(
                f"the network is on '{tensor.device}': files are for the CPU; give model.cpu()"
            )
        if tensor.is_floating_point() and tensor.dtype not in _TYPES:
            raise UsageError(
                f"the network holds numbers of {tensor.dtype}: only float32 and float64 are "
                "exported; give model.float()"
            )


def _trials(model: nn.Module, example: Arguments, dynamic: bool) -> Iterator[Arguments]:
    """Yield random inputs to compare with; the first is the one to capture the network with."""
    if not dynamic:
        yield example.with_random_values(0)
        yield example.with_random_values(1)
        return
    check_sizes(example)
    # A batch of one does not show whether the batch size may vary.
    samples = max([2, *(t.shape[0] for t in example.tensors if t.dim())])
    yield example.with_random_values(0, scaled(samples))
    yield example.with_random_values(1, scaled(1))
    yield _other_size(model, example, samples + 1)


def _other_size(model: nn.Module, example: Arguments, samples: int) -> Arguments:
    """Return the first of some sizes that the network accepts."""
    said = ""
    for factor in (0.5, 1.5, 2.0):
        arguments = example.with_random_values(2, scaled(samples, factor))
        try:
            arguments.copy().call(model)
        except Exception as error:
            said = said or describe_failure(error)
        else:
            return arguments
    raise UsageError(
        f"{type(model).__name__} supports no other size ({said}): export it without dynamic"
    )


def _expected(model: nn.Module, arguments: Arguments) -> list[Tensor]:
    what = f"the forward of {type(model).__name__} fails with an input {_shapes(arguments)}"
    with reraise_as(TraceError, what, "check the example input"):
        outputs = list(tensors_in(arguments.copy().call(model)))
    if not all(bool(t.isfinite().all()) for t in outputs):
        raise UsageError(
            f"the {type(model).__name__} produces non-finite outputs for random inputs: "
            "a file cannot be compared with it"
        )
    return outputs


def _run(run: Runner, arguments: Arguments) -> list[Tensor]:
    what = f"the file does not run with an input {_shapes(arguments)}, as the network does"
    with reraise_as(IntegrityError, what, "it was not written"):
        return run(arguments.copy())


def _shapes(arguments: Arguments) -> str:
    return ", ".join(str(tuple(tensor.shape)) for tensor in arguments.tensors)
