"""The peak of a training step and its course: by hand, and against the allocator's records."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ranp.errors import UsageError
from ranp.models import MobileNetV2, UNet3D
from ranp.recompute import checkpointed
from ranp.resources import predict_training_memory
from ranp.resources.autocast import _FLOAT32_ON_CPU, _FLOAT32_ON_CUDA
from ranp.resources.kernel_workspace import CUDA_BLOCK
from ranp.resources.training_memory import CUDA_CONTEXT, CUDA_GAPS, step_temporaries
from tests.resources.allocator import peak_of, step_peak

OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "amsgrad": lambda p: torch.optim.Adam(p, amsgrad=True),
}


def unet(width=8):
    return UNet3D(in_channels=2, classes=3, levels=3, base_width=width).train()


def two_layers():
    return nn.Sequential(nn.Linear(10, 20, bias=False), nn.ReLU(), nn.Linear(20, 5, bias=False))


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("batch", [1, 2])
def test_the_peak_is_the_allocators(optimizer, batch, one_thread):
    model, x = unet(), torch.randn(batch, 2, 16, 16, 16)
    measured = step_peak(model, x, OPTIMIZERS[optimizer](model.parameters()))
    predicted = predict_training_memory(model, tuple(x.shape), optimizer=optimizer).peak
    assert predicted == pytest.approx(measured, rel=0.002)


def test_the_peak_with_depthwise_convolutions_is_the_allocators(one_thread):
    model, x = MobileNetV2(classes=7).train(), torch.randn(1, 3, 8, 48, 48)
    measured = step_peak(model, x, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    predicted = predict_training_memory(model, tuple(x.shape), optimizer="momentum").peak
    assert predicted == pytest.approx(measured, rel=0.002)


def test_the_peak_with_a_loss_is_the_allocators(one_thread):
    model, x = unet(), torch.randn(2, 2, 16, 16, 16)

    def loss(output):
        return F.cross_entropy(output, torch.zeros(2, 16, 16, 16, dtype=torch.int64))

    measured = step_peak(model, x, torch.optim.Adam(model.parameters()), loss)
    predicted = predict_training_memory(model, tuple(x.shape), loss=loss).peak
    assert predicted == pytest.approx(measured, rel=0.002)


@pytest.mark.parametrize("precision", ["32", "bf16"])
def test_the_peak_with_checkpointing_is_the_allocators(precision, one_thread):
    model, x = unet(), torch.randn(2, 2, 16, 16, 16)

    class Mixed(nn.Module):
        """As Fabric does it."""

        def __init__(self, network):
            super().__init__()
            self.network = network

        def forward(self, x):
            if precision == "32":
                return self.network(x)
            with torch.autocast("cpu", dtype=torch.bfloat16):
                output = self.network(x.bfloat16())
            return output.float()

    with checkpointed(model):
        measured = step_peak(Mixed(model), x, torch.optim.SGD(model.parameters(), lr=0.1))
    predicted = predict_training_memory(
        model, tuple(x.shape), optimizer="sgd", recompute=True, precision=precision
    ).peak
    assert predicted == pytest.approx(measured, rel=0.01)


def test_two_layers_by_hand():
    batch, item = 100, 4
    memory = predict_training_memory(two_layers(), (batch, 10), optimizer="sgd")
    weights = (200 + 100) * item
    given, hidden, output = (batch * n * item for n in (10, 20, 5))
    scalar = item
    assert memory.parameters == memory.gradients == weights
    # ReLU's output is all that autograd keeps; the input is the user's. The mean is three scalars
    # (mean, stack, sum), of which the sum is left. The output has a name in the training loop.
    assert memory.activations == hidden + scalar + output
    resting = weights + given
    # At the peak the gradients of the hidden layer before and after ReLU are there at one time,
    # beside ReLU's output and the gradient of the second weight.
    second = 100 * item
    # The loss and the one that the backward pass begins with live as long as it does.
    assert memory.peak == resting + 3 * hidden + second + 2 * scalar + output
    assert memory.timeline.peak_phase == "backward"


def test_bf16_halves_what_a_convolution_keeps():
    model = nn.Sequential(
        *(nn.Conv3d(4, 4, 1, bias=False) for _ in range(6)), nn.Conv3d(4, 1, 1, bias=False)
    )
    shape = (1, 4, 16, 16, 16)
    full = predict_training_memory(model, shape, optimizer="sgd", device="cuda")
    half = predict_training_memory(model, shape, optimizer="sgd", precision="bf16", device="cuda")
    one = 4 * 16**3
    # Six inputs of convolutions beyond the first, which is the user's; in bf16 a copy of it too.
    # And the output, a quarter as wide, in float32.
    assert full.activations == pytest.approx(6 * 4 * one + one, abs=20 * CUDA_BLOCK)
    assert half.activations == pytest.approx(7 * 2 * one + one, abs=40 * CUDA_BLOCK)
    assert half.parameters == full.parameters and half.gradients == full.gradients


def test_half_precision_takes_what_bfloat16_takes():
    shape = (1, 2, 16, 16, 16)
    takes = [
        predict_training_memory(unet(), shape, precision=p, device="cuda").peak
        for p in ("16", "bf16")
    ]
    assert takes[0] == takes[1]


def test_autocast_on_cuda_follows_pytorchs_own_lists():
    header = Path(torch.__file__).parent / "include/ATen/autocast_mode.h"
    text = header.read_text()
    start = text.index("#define AT_FORALL_FP32(")
    end = text.index("#define AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE", start)
    float32 = set(re.findall(r"_\((\w+)", text[start:end]))
    assert float32 >= _FLOAT32_ON_CUDA
    assert not _FLOAT32_ON_CPU & float32


@pytest.mark.parametrize("name", sorted(_FLOAT32_ON_CPU - {"grid_sampler"}))
def test_autocast_on_a_cpu_does_run_pools_in_float32(name):
    """If this no longer holds, the rules need not be changed for CUDA."""
    pool = {"avg_pool3d": F.avg_pool3d, "max_pool3d": F.max_pool3d}.get(name, getattr(F, name))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert pool(torch.ones(1, 1, 4, 4, 4, dtype=torch.bfloat16), 2).dtype == torch.float32


def test_a_pool_keeps_its_precision_on_cuda():
    model = nn.Sequential(nn.Conv3d(1, 4, 1), nn.MaxPool3d(2), nn.Conv3d(4, 1, 1))
    shape = (1, 1, 32, 32, 32)
    on_cuda, on_cpu = (
        predict_training_memory(model, shape, precision="bf16", device=d).activations
        for d in ("cuda", "cpu")
    )
    voxels = 32**3
    # On a CPU the pool's input is kept in float32 besides the convolution's own output.
    assert on_cpu - on_cuda == pytest.approx(4 * voxels * 4 - 2 * voxels * 4, rel=0.5)


def test_checkpointing_keeps_less():
    shape = (1, 2, 32, 32, 32)
    kept = predict_training_memory(unet(), shape, optimizer="sgd")
    again = predict_training_memory(unet(), shape, optimizer="sgd", recompute=True)
    assert again.activations < 0.6 * kept.activations
    assert again.peak < kept.peak


def test_cuda_rounds_and_leaves_room():
    memory = predict_training_memory(two_layers(), (1, 10), optimizer="sgd", device="cuda")
    alive = max(memory.timeline.bytes)
    assert all(size % CUDA_BLOCK == 0 for size in memory.timeline.bytes)
    assert memory.allowance == CUDA_CONTEXT + int(CUDA_GAPS * alive)
    assert memory.peak == alive + memory.allowance


def test_the_device_is_the_models():
    on_meta = unet().to("meta")
    shape = (1, 2, 16, 16, 16)
    as_cuda = predict_training_memory(on_meta, shape)
    assert as_cuda == predict_training_memory(unet(), shape, device="cuda")
    assert predict_training_memory(on_meta, shape, device="cpu").allowance == 0


def test_fewer_channels_take_less():
    peaks = [
        predict_training_memory(unet(width), (2, 2, 16, 16, 16)).peak for width in (4, 8, 12, 16)
    ]
    assert peaks == sorted(peaks) and peaks[0] < peaks[-1] / 2


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_temporaries_of_the_step_are_the_allocators(optimizer, device):
    parameters = [nn.Parameter(torch.randn(n)) for n in (30_000, 5_000, 20_000)]
    made = OPTIMIZERS[optimizer](parameters)
    made.param_groups[0]["foreach"] = device == "cuda"  # what PyTorch does there by default
    for p in parameters:
        p.grad = torch.randn_like(p)
    made.step()
    _, measured = peak_of(made.step)
    predicted = step_temporaries([p.nbytes for p in parameters], optimizer, device)
    assert max(predicted) == pytest.approx(measured, abs=2_000)


def test_the_step_can_be_the_peak():
    memory = predict_training_memory(nn.Linear(1000, 1000), (1, 1000), optimizer="adam")
    assert memory.timeline.peak_phase == "step"
    weight = 4 * 1000 * 1000
    assert memory.peak == pytest.approx(4 * weight + 2 * weight, rel=0.01)


def test_the_timeline_names_phases_and_modules():
    memory = predict_training_memory(unet(), (1, 2, 16, 16, 16), optimizer="adam")
    line = memory.timeline
    assert len(line.bytes) == len(line.modules)
    assert 0 < line.backward < line.step < len(line.bytes)
    assert max(line.bytes) == memory.peak == line.bytes[line.peak_at]
    forward = [m for m in line.modules[: line.backward] if m]
    assert forward[0] == "encoder.0.conv1" and forward[-1] == "head"
    order = [m for m in dict.fromkeys(line.modules[line.backward : line.step]) if m]
    assert order[0] == "head" and order[-1] == "encoder.0.conv1"
    assert set(line.modules[line.step :]) == {"optimizer"}


def test_the_timeline_ends_where_the_next_step_begins():
    memory = predict_training_memory(two_layers(), (100, 10), optimizer="momentum")
    rest = memory.parameters + memory.gradients + memory.optimizer + 100 * 10 * 4
    assert memory.timeline.bytes[-1] == rest


def test_holders_are_whose_bytes_they_are():
    memory = predict_training_memory(unet(), (1, 2, 16, 16, 16), optimizer="adam")
    sizes = [holder.bytes for holder in memory.holders]
    assert sizes == sorted(sizes, reverse=True)
    fixed = memory.parameters + memory.optimizer + 4 * 2 * 16**3
    assert sum(sizes) == memory.peak - fixed
    names = {name for name, _ in unet().named_modules()}
    assert {holder.module for holder in memory.holders} <= names


def test_a_recomputed_block_is_its_modules():
    memory = predict_training_memory(unet(), (1, 2, 16, 16, 16), recompute=True)
    line = memory.timeline
    again = set(line.modules[line.backward : line.step])
    assert {"encoder.0.conv1", "decoder.1.norm2"} <= again


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"precision": "8"}, "precision must be one of '32', 'bf16', '16', got '8'"),
        ({"precision": 16}, "precision must be one of '32', 'bf16', '16', got 16"),
        ({"device": "tpu"}, "device must be one of 'cpu', 'cuda', got 'tpu'"),
        ({"device": torch.device("cpu")}, "got device(type='cpu')"),
        ({"optimizer": "lion"}, "optimizer must be one of 'sgd', 'momentum', 'adam'"),
        ({"loss": F.cross_entropy}, "loss=lambda output: cross_entropy(output, target)"),
        ({"loss": nn.CrossEntropyLoss()}, "alone, got CrossEntropyLoss (missing a required"),
    ],
)
def test_what_is_not_known_is_refused(wrong, says):
    with pytest.raises(UsageError, match=re.escape(says)):
        predict_training_memory(two_layers(), (1, 10), **wrong)
