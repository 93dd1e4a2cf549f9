"""Files that are never torn: written beside the target, synced, then renamed over it."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import json
import os
import platform
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from ranp.errors import IntegrityError, UsageError

if TYPE_CHECKING:
    from torch import Tensor

_TEMPORARY = ".ranp-tmp-"
_ABANDONED_SECONDS = 7 * 24 * 3600
_written_here: set[str] = set()


def ensure_directory(path: str | Path) -> Path:
    """Make a directory that can be written to, or raise an error that says why not.

    Also removes temporary files that an earlier process left behind when it was killed.
    """
    directory = Path(path)
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:  # a null byte is a ValueError
        reason = getattr(error, "strerror", None) or error
        raise UsageError(
            f"cannot use {str(directory)!r} as an output directory: {reason}; choose another one"
        ) from error
    if not os.access(directory, os.W_OK):
        raise UsageError(f"output directory '{directory}' is not writable; choose another one")
    for temporary in directory.glob(f"{_TEMPORARY}*"):
        with contextlib.suppress(OSError):  # others may sweep, too
            if _is_abandoned(temporary):
                temporary.unlink()
    return directory


LOCK = "lock"
"""The file in a directory that its owner holds."""
_held: set[int] = set()


@contextlib.contextmanager
def hold_directory(directory: Path, *, wait: bool = False) -> Iterator[str | None]:
    """Hold a directory for this process, on one machine or on several with a common file system.

    The system lets go when the process ends, however it does.

    Yields:
        None while it is held; who else holds it otherwise, such as "process 12 on host".
    """
    with (directory / LOCK).open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            file.seek(0)
            yield file.read().strip() or "another process"
            return
        file.truncate(0)
        file.write(f"process {os.getpid()} on {platform.node()}\n")
        file.flush()
        _held.add(file.fileno())
        try:
            yield None
        finally:
            _held.discard(file.fileno())
            fcntl.flock(file, fcntl.LOCK_UN)


def _close_inherited_locks() -> None:
    """Close locks in a process that was forked, which else would hold them beyond its parent."""
    for descriptor in _held:
        os.close(descriptor)
    _held.clear()


os.register_at_fork(after_in_child=_close_inherited_locks)


@functools.cache
def _machine() -> str:
    """Return an id of what a process number is valid in: this host, since its start, namespace."""
    parts = [platform.node()]
    with contextlib.suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text())
        parts.append(str(Path("/proc/self/ns/pid").readlink()))
    return json_sha256(parts)[:12]


def _is_abandoned(temporary: Path) -> bool:
    """Return whether no process writes to a temporary file any more.

    A process can be looked up only where it runs; what others left is theirs for a week.
    """
    if not temporary.is_file():
        return False
    machine, _, rest = temporary.name.removeprefix(_TEMPORARY).partition("-")
    pid = rest.partition("-")[0]
    if machine != _machine() or not pid.isdigit():
        return time.time() - temporary.stat().st_mtime > _ABANDONED_SECONDS
    if int(pid) == os.getpid():
        return temporary.name not in _written_here
    return not Path(f"/proc/{pid}").exists()


@contextlib.contextmanager
def atomic_write(path: str | Path) -> Iterator[BinaryIO]:
    """Open a file whose content appears under `path` at once and whole, or not at all."""
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(
            prefix=f"{_TEMPORARY}{_machine()}-{os.getpid()}-", dir=path.parent
        )
    except (FileExistsError, NotADirectoryError, PermissionError) as error:
        raise UsageError(
            f"cannot write '{path}': {error.strerror or error}; choose another place"
        ) from error
    _written_here.add(Path(temporary).name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).chmod(0o666 & ~_umask())
        Path(temporary).replace(path)
        _sync_directory(path.parent)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    finally:
        _written_here.discard(Path(temporary).name)


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current


def _sync_directory(directory: Path) -> None:
    with contextlib.suppress(OSError):  # not every file system can sync a directory
        descriptor = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def write_text(path: str | Path, text: str) -> Path:
    """Write a text file atomically, and return its path."""
    with atomic_write(path) as file:
        # Where the locale is ASCII, names of files come in with the bytes that it does not know.
        file.write(text.encode(errors="surrogateescape"))
    return Path(path)


@contextlib.contextmanager
def blame_file(
    path: Path, errors: tuple[type[Exception], ...], reason: str, advice: str = ""
) -> Iterator[None]:
    """Turn errors of a library that reads a file into an `IntegrityError` that names the file."""
    try:
        yield
    except FileNotFoundError as error:
        raise IntegrityError(f"'{path}' does not exist") from error
    except errors as error:
        raise IntegrityError(f"'{path}' {reason}: {error}{advice}") from error


def canonical_json(value: Any) -> str:
    """Return one text per value, to take hashes of: sorted keys, no spaces."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def sha256(data: bytes | str) -> str:
    """Return the SHA-256 of bytes, or of a text's UTF-8, in hexadecimal."""
    return hashlib.sha256(data.encode() if isinstance(data, str) else data).hexdigest()


def json_sha256(value: Any) -> str:
    """Return the SHA-256 of a JSON value: equal values have equal hashes."""
    return sha256(canonical_json(value))


def write_sealed_json(path: str | Path, content: Mapping[str, Any]) -> None:
    """Write a JSON object together with the SHA-256 of its content."""
    sealed = {**content, "sha256": json_sha256(content)}
    write_text(path, json.dumps(sealed, indent=1, allow_nan=False) + "\n")


def read_sealed_json(path: str | Path, what: str) -> dict[str, Any]:
    """Read what `write_sealed_json` wrote ("plan", ...); refuse what was changed since."""
    path = Path(path)
    try:
        content = json.loads(path.read_bytes().decode())
    except FileNotFoundError as error:
        raise UsageError(f"{what} '{path}' does not exist") from error
    except IsADirectoryError as error:
        raise UsageError(f"{what} '{path}' is a directory; name the file in it") from error
    except (ValueError, RecursionError) as error:
        raise IntegrityError(
            f"{what} '{path}' is not valid JSON ({error}); restore it or make it again"
        ) from error
    seal = content.pop("sha256", None) if isinstance(content, dict) else None
    if seal is None:
        raise IntegrityError(f"'{path}' is not a {what} written by ranp: it carries no SHA-256")
    try:
        actual = json_sha256(content)
    except ValueError as error:
        raise IntegrityError(f"{what} '{path}' holds a value that is not JSON ({error})") from error
    if seal != actual:
        raise IntegrityError(
            f"{what} '{path}' was changed after it was written (its SHA-256 differs); "
            "restore it or make it again"
        )
    assert isinstance(content, dict)
    return content


def save_tensors(
    path: str | Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]
) -> None:
    """Write tensors to a safetensors file, atomically, with a SHA-256 of all that is in it."""
    from safetensors.torch import save

    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    content = {**metadata, "sha256": _tensors_sha256(plain, metadata)}
    with atomic_write(path) as file:
        file.write(save(plain, content))


def load_tensors(path: str | Path, what: str) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read what `save_tensors` wrote ("weights", ...); refuse what was changed since."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(path), "pt") as file:
            metadata = dict(file.metadata() or {})
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except FileNotFoundError as error:
        raise UsageError(f"{what} '{path}' do not exist") from error
    except (SafetensorError, OSError, ValueError) as error:
        raise IntegrityError(
            f"'{path}' is not a readable safetensors file ({error}); restore it or make it again"
        ) from error
    seal = metadata.pop("sha256", None)
    if seal is None or seal != _tensors_sha256(tensors, metadata):
        raise IntegrityError(
            f"{what} '{path}' were changed after they were written (the SHA-256 differs); "
            "restore the file or make it again"
        )
    return tensors, metadata


def _tensors_sha256(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> str:
    import torch

    digest = hashlib.sha256(canonical_json(dict(metadata)).encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
