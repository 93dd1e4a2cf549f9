"""The kinds of files there are: how each is written, and how it is run again."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from torch.export import ExportedProgram

from ranp.errors import IntegrityError, TraceError, UsageError
from ranp.exporting.arguments import Arguments
from ranp.exporting.capture import input_sizes
from ranp.exporting.quiet import quiet, reraise_as
from ranp.graph.operation import tensors_in
from ranp.user_code import describe_failure

Format = Literal["onnx", "pt2"]
Runner = Callable[[Arguments], list[Tensor]]
ENTRY = "ranp"
"""Under this name a file says where it comes from, as JSON."""
USE_PT2 = "a name that ends in .pt2 keeps every operation of PyTorch"
"""The way out of what ONNX cannot do."""
_LARGEST = 2**31 - 1  # a protobuf message cannot be longer


@dataclass(frozen=True)
class FileFormat:
    """A kind of file.

    Attributes:
        runtime: Name of what runs it.
        require: Raises a UsageError if a package is missing.
        write: `write(program, about)` -> content of the file, which holds the text `about`.
        open: `open(content)` -> a function that runs the network.
        versions: `versions(content)` -> versions that the file depends on besides torch.
    """

    runtime: str
    require: Callable[[], None]
    write: Callable[[ExportedProgram, str], bytes]
    open: Callable[[bytes], Runner]
    versions: Callable[[bytes], Mapping[str, str]]


def find_format(path: Path, named: str | None = None) -> Format:
    """Return the format that is named, or else that of the path's suffix.

    Raises:
        UsageError: There is none, or a package that it needs is missing.
    """
    for name, kind in FORMATS.items():
        if name == named or (named is None and path.suffix == f".{name}"):
            kind.require()
            return name
    if named is not None:
        raise UsageError(f"unknown format '{named}': use {' or '.join(FORMATS)}")
    endings = " or ".join(f".{name}" for name in FORMATS)
    raise UsageError(f"'{path}' does not tell the format; use a name that ends in {endings}")


def load_exported(path: str | Path, format: Format | None = None) -> Runner:
    """Open a file that `export` wrote, to run it here.

    Args:
        path: Path of the file.
        format: Format, if the suffix of the path does not say so.

    Raises:
        IntegrityError: The file is damaged.
    """
    path = Path(path)
    kind = FORMATS[find_format(path, format)]
    try:
        content = path.read_bytes()
    except (FileNotFoundError, IsADirectoryError) as error:
        raise UsageError(
            f"cannot read '{path}': {error.strerror}; name an exported file"
        ) from error
    try:
        return kind.open(content)
    except Exception as error:
        raise IntegrityError(
            f"{kind.runtime} cannot open '{path}' ({describe_failure(error)}); export it again"
        ) from error


def _write_onnx(program: ExportedProgram, about: str) -> bytes:
    with reraise_as(TraceError, "the network cannot be written as ONNX", USE_PT2), quiet():
        converted = torch.onnx.export(program, dynamo=True, verbose=False)
    assert converted is not None
    proto = converted.model_proto
    for node in proto.graph.node:
        del node.metadata_props[:]  # how the exporter came to it; half of a slim network's file
    del proto.graph.value_info[:]  # shapes on the way, which every runtime finds by itself
    _name_sizes(proto.graph, input_sizes(program))
    entry = proto.metadata_props.add()
    entry.key, entry.value = ENTRY, about
    if proto.ByteSize() > _LARGEST:
        raise UsageError(
            "the network is larger than 2 GB, more than an ONNX file can hold: "
            "use a name that ends in .pt2, or prune more"
        )
    content: bytes = proto.SerializeToString()
    return content


def _name_sizes(graph: Any, inputs: Mapping[str, tuple[int | str, ...]]) -> None:
    """Give sizes that vary the names of `input_sizes`, in inputs and outputs."""
    named: dict[str, str] = {}
    for value in graph.input:
        for dim, size in zip(value.type.tensor_type.shape.dim, inputs[value.name], strict=True):
            if isinstance(size, str):
                named[dim.dim_param] = size
    for value in (*graph.input, *graph.output):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param in named:
                dim.dim_param = named[dim.dim_param]


def _open_onnx(content: bytes) -> Runner:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_inputs()]

    def run(arguments: Arguments) -> list[Tensor]:
        arrays = (tensor.numpy() for tensor in arguments.tensors)
        return [
            torch.from_numpy(y) for y in session.run(None, dict(zip(names, arrays, strict=True)))
        ]

    return run


def _onnx_versions(content: bytes) -> Mapping[str, str]:
    import onnx
    import onnxruntime

    proto = onnx.load_from_string(content)
    opsets = {entry.domain: entry.version for entry in proto.opset_import}
    return {"opset": str(opsets[""]), "onnxruntime": onnxruntime.__version__}


def _require_onnx() -> None:
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise UsageError(
            f'ONNX files need {error.name}: pip install "ranp[export]", or use a .pt2 file'
        ) from error


def _write_pt2(program: ExportedProgram, about: str) -> bytes:
    file = io.BytesIO()
    torch.export.save(program, file, extra_files={f"{ENTRY}.json": about})
    return file.getvalue()


def _open_pt2(content: bytes) -> Runner:
    network = torch.export.load(io.BytesIO(content)).module()

    def run(arguments: Arguments) -> list[Tensor]:
        with torch.no_grad():
            return list(tensors_in(arguments.call(network)))

    return run


FORMATS: dict[Format, FileFormat] = {
    "onnx": FileFormat("onnxruntime", _require_onnx, _write_onnx, _open_onnx, _onnx_versions),
    "pt2": FileFormat("torch.export", lambda: None, _write_pt2, _open_pt2, lambda content: {}),
}
