"""Messages while a network is exported: failures in one line, without torch's own output."""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr

from ranp.errors import RanpError
from ranp.user_code import describe_failure

_LOGS = (
    "torch.fx.experimental.symbolic_shapes",  # repeats in many lines what is raised as well
    "torch.onnx._internal.exporter._core",  # outputs that are None
    "torch.onnx._internal.exporter._registration",  # torchvision is not installed
)
_WARNINGS = (
    (FutureWarning, r".*LeafSpec.* is deprecated"),  # torch's use of itself
    # Tensors that a forward leaves in its module; torch sets them back, and outputs are compared.
    (UserWarning, r"The tensor attributes? .* assigned during export"),
)


@contextmanager
def reraise_as(kind: type[RanpError], what: str, advice: str) -> Iterator[None]:
    """Raise any exception inside as an error of `kind`: what fails, why, and what to do."""
    try:
        yield
    except Exception as error:
        raise kind(f"{what}: {describe_failure(error)}; {advice}") from error


@contextmanager
def quiet() -> Iterator[None]:
    """Hide those warnings and logs of torch that a user can do nothing about."""
    with ExitStack() as stack:
        for name in _LOGS:
            log = logging.getLogger(name)
            stack.callback(log.setLevel, log.level)
            log.setLevel(logging.ERROR)
        stack.enter_context(warnings.catch_warnings())
        for category, message in _WARNINGS:
            warnings.filterwarnings("ignore", message, category)
        # Where a forward cannot be captured, torch prints the graph up to there.
        stack.enter_context(redirect_stderr(io.StringIO()))
        yield
