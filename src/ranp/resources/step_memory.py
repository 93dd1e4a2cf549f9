"""Peak memory of training steps, measured in a process of its own.

On a CPU the figure is how far the resident set grows during a step, and what rests between steps:
parameters, optimizer state and the batch. Every large tensor is a mapping of its own
(MALLOC_MMAP_THRESHOLD_), so that what is freed is gone. A step beforehand makes the optimizer's
state, loads libraries, and has oneDNN generate its kernels. Those stay, whatever the size of the
network: with a first step measured, the prediction for MobileNetV2 came out 13 % too small.

On CUDA it is the most that the allocator has reserved, plus the context.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ranp.errors import RanpError
from ranp.graph.operation import tensors_in
from ranp.resources.autocast import DTYPES, Precision
from ranp.resources.machine import proc_bytes
from ranp.resources.measuring import zero_label_cross_entropy
from ranp.resources.training_memory import Device, Optimizer
from ranp.user_code import load_object


@dataclass(frozen=True)
class StepRequest:
    """Training steps to measure.

    Attributes:
        build: Function that builds the network, as `package.module:function`.
        arguments: Arguments of that function: plain values.
        shape: Shape of a batch.
        ways: Optimizers and precisions to train with, one after the other.
        loss: `loss(output)` -> scalar tensor, as `package.module:function`.
        device: Device to train on.
    """

    build: str
    arguments: Sequence[Any]
    shape: Sequence[int]
    ways: Sequence[tuple[Optimizer, Precision]]
    loss: str = "ranp.resources.step_memory:zero_label_loss"
    device: Device = "cpu"


@dataclass(frozen=True)
class MeasuredStep:
    """What a training step took.

    Attributes:
        peak: Bytes at the peak; on CUDA those that were reserved, and the context.
        allocated: Bytes of tensors at the peak; None where only the whole is known.
        seconds: CPU seconds of the step.
        failure: Why it could not be run; the rest is 0 then.
    """

    peak: int = 0
    allocated: int | None = None
    seconds: float = 0.0
    failure: str = ""


def zero_label_loss(output: Any) -> Tensor:
    """Return the sum of the cross-entropies of all outputs against labels of zeros."""
    return torch.stack([zero_label_cross_entropy(t) for t in tensors_in(output)]).sum()


def make_optimizer(name: Optimizer, model: nn.Module) -> torch.optim.Optimizer:
    """Return one of the optimizers that `predict_training_memory` knows."""
    if name in ("sgd", "momentum"):
        momentum = 0.9 if name == "momentum" else 0.0
        return torch.optim.SGD(model.parameters(), lr=1e-3, momentum=momentum)
    return torch.optim.Adam(model.parameters(), lr=1e-3, amsgrad=name == "amsgrad")


# AMX in some virtual machines: bfloat16 transposed convolutions end so.
_ILLEGAL = "illegal instruction; set ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16"


def measure_steps(request: StepRequest) -> list[MeasuredStep]:
    """Measure training steps in a new process, on one thread; raise `RanpError` if it fails."""
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "MALLOC_MMAP_THRESHOLD_": "65536",
        "MALLOC_ARENA_MAX": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }
    done = subprocess.run(
        [sys.executable, "-m", "ranp.resources.step_memory", json.dumps(asdict(request))],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    if done.returncode:
        killed = _ILLEGAL if done.returncode == -signal.SIGILL else "it was killed"
        last = (done.stderr.strip().splitlines() or [killed])[-1]
        raise RanpError(f"measuring {request.build} {list(request.arguments)} failed: {last}")
    return [MeasuredStep(**each) for each in json.loads(done.stdout.splitlines()[-1])]


def resident(field: str) -> int:
    """Return VmRSS, or VmHWM, its peak, of this process in bytes."""
    size = proc_bytes("/proc/self/status", field)
    assert size is not None
    return size


def measure_here(request: StepRequest) -> list[MeasuredStep]:
    """Measure training steps in this process."""
    torch.set_num_threads(1)
    loss = load_object(request.loss, "the loss")
    found = []
    for optimizer, precision in request.ways:
        if request.device == "cpu" and not _computes(precision):
            found.append(MeasuredStep(failure="emulated by this CPU"))
            continue
        torch.manual_seed(0)
        model = load_object(request.build, "the network")(*request.arguments).train()
        model = model.to(request.device)
        x = torch.randn(*request.shape, device=request.device)
        try:
            found.append(_measure(model, x, loss, make_optimizer(optimizer, model), precision))
        except (RuntimeError, NotImplementedError) as error:
            first = next(iter(str(error).splitlines()), type(error).__name__)
            found.append(MeasuredStep(failure=first[:120]))
    return found


def _computes(precision: Precision) -> bool:
    """Return whether this CPU computes in a precision; emulated, a step would take hours."""
    if precision == "32":
        return True
    onednn: Any = torch.ops.mkldnn
    found = {"bf16": onednn._is_mkldnn_bf16_supported, "16": onednn._is_mkldnn_fp16_supported}
    return bool(found[precision]())


def _measure(
    model: nn.Module,
    x: Tensor,
    loss: Callable[[Any], Tensor],
    optimizer: torch.optim.Optimizer,
    precision: Precision,
) -> MeasuredStep:
    low = DTYPES[precision]
    half = precision != "32"

    def forward() -> Any:
        """Run the model as Fabric does: inputs are cast down, outputs are cast back."""
        with torch.autocast(x.device.type, dtype=low, enabled=half):
            output = model(x.to(low) if half else x)
        return [t.float() for t in tensors_in(output)] if half else output

    def step() -> None:
        output = forward()
        loss(output).backward()
        optimizer.step()
        optimizer.zero_grad()

    step()
    meter = _cuda_meter if x.device.type == "cuda" else _resident_meter
    state = (t for s in optimizer.state.values() for t in s.values() if isinstance(t, Tensor))
    resting = sum(t.nbytes for t in (*model.parameters(), *model.buffers(), x, *state))
    return meter(step, resting)


def _resident_meter(step: Callable[[], None], resting: int) -> MeasuredStep:
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    before, began = resident("VmRSS"), time.process_time()
    step()
    seconds = time.process_time() - began
    return MeasuredStep(resident("VmHWM") - before + resting, seconds=seconds)


def _cuda_meter(step: Callable[[], None], resting: int) -> MeasuredStep:
    free, total = torch.cuda.mem_get_info()
    context = total - free - torch.cuda.memory_reserved()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    began = time.process_time()
    step()
    torch.cuda.synchronize()
    return MeasuredStep(
        torch.cuda.max_memory_reserved() + max(context, 0),
        torch.cuda.max_memory_allocated(),
        time.process_time() - began,
    )


if __name__ == "__main__":
    steps = measure_here(StepRequest(**json.loads(sys.argv[1])))
    print(json.dumps([asdict(each) for each in steps]))
