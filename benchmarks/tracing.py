"""CPU seconds of `trace`, predicted memory and `fit`, beside those of another version.

    git worktree add /tmp/before COMMIT
    RANP_BEFORE=/tmp/before/src python -m benchmarks tracing

Without `RANP_BEFORE`, this version alone. Every figure is the smaller of two, taken in turns, each
in a process of its own after a small network has been traced (what the first trace of a process
loads is not the network's). A prediction is the mean of four, with two batch sizes and optimizers.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn

ROUNDS = 2


def swin() -> tuple[nn.Module, tuple[int, ...]]:
    """MONAI's SwinUNETR."""
    from monai.networks.nets import SwinUNETR

    return SwinUNETR(in_channels=1, out_channels=3, feature_size=24), (1, 1, 96, 96, 96)


def mednext() -> tuple[nn.Module, tuple[int, ...]]:
    """MONAI's smallest MedNeXt."""
    from monai.networks.nets import MedNeXtS

    return MedNeXtS(spatial_dims=3, in_channels=1, out_channels=3), (1, 1, 128, 128, 128)


def resenc() -> tuple[nn.Module, tuple[int, ...]]:
    """nnU-Net's residual encoder of 72 layers."""
    from dynamic_network_architectures.architectures.unet import ResidualEncoderUNet

    network: nn.Module = ResidualEncoderUNet(
        input_channels=1,
        n_stages=6,
        features_per_stage=[32, 64, 128, 256, 320, 320],
        conv_op=nn.Conv3d,
        kernel_sizes=3,
        strides=[1, 2, 2, 2, 2, 2],
        n_blocks_per_stage=[1, 3, 4, 6, 6, 6],
        num_classes=3,
        n_conv_per_stage_decoder=1,
        conv_bias=True,
        norm_op=nn.InstanceNorm3d,
        norm_op_kwargs={"affine": True},
        nonlin=nn.LeakyReLU,
        nonlin_kwargs={"inplace": True},
    )
    return network, (1, 1, 128, 128, 128)


def dynunet() -> tuple[nn.Module, tuple[int, ...]]:
    """MONAI's DynUNet with deep supervision, at nnU-Net's widths."""
    from monai.networks.nets import DynUNet

    network: nn.Module = DynUNet(
        spatial_dims=3,
        in_channels=1,
        out_channels=3,
        kernel_size=[3] * 6,
        strides=[1, 2, 2, 2, 2, 2],
        upsample_kernel_size=[2] * 5,
        filters=[32, 64, 128, 256, 320, 320],
        deep_supervision=True,
        deep_supr_num=2,
    )
    return network, (1, 1, 128, 128, 128)


def unet() -> tuple[nn.Module, tuple[int, ...]]:
    """The paper's 3D-UNet."""
    from ranp.models import build_network

    return build_network("unet3d-brats"), (1, 4, 32, 32, 32)


def mobilenet() -> tuple[nn.Module, tuple[int, ...]]:
    """The paper's MobileNetV2."""
    from ranp.models import build_network

    return build_network("mobilenetv2-ucf101"), (1, 3, 16, 112, 112)


NETWORKS = {
    "SwinUNETR": swin,
    "MedNeXt-S": mednext,
    "nnU-Net ResEnc": resenc,
    "DynUNet": dynunet,
    "3D-UNet": unet,
    "MobileNetV2": mobilenet,
}
RUNS = {
    "trace": ("SwinUNETR", "MedNeXt-S", "nnU-Net ResEnc", "DynUNet"),
    "predict": ("3D-UNet", "MobileNetV2", "nnU-Net ResEnc"),
    "fit": ("nnU-Net ResEnc", "DynUNet", "SwinUNETR"),
}

# Run by both versions, so it uses what both have.
_PROGRAM = """
import sys, time, warnings
import torch
from torch import nn
import ranp
from ranp.graph import build_graph
from ranp.resources import predict_training_memory
sys.path.insert(0, sys.argv[1])
from benchmarks.tracing import NETWORKS

warnings.simplefilter("ignore")
torch.set_num_threads(1)
build_graph(nn.Sequential(nn.Conv3d(1, 4, 3), nn.BatchNorm3d(4), nn.ReLU(), nn.Conv3d(4, 2, 1)),
            (1, 1, 8, 8, 8))
what, name = sys.argv[2:]
model, shape = NETWORKS[name]()

def fit():
    batch = torch.zeros(1, 1, 64, 64, 64)
    ranp.fit(model, [(batch, batch)], lambda y, _: y.mean(), memory="60%", batch=2,
             input=shape[1:], device="cuda", method="layerwise")  # which needs no scores

def predict():
    for batch in (1, 2):
        for optimizer in ("momentum", "adam"):
            predict_training_memory(model, (batch, *shape[1:]), optimizer=optimizer)

run = {"trace": lambda: build_graph(model, shape), "predict": predict, "fit": fit}[what]
began = time.process_time()
run()
print((time.process_time() - began) / (4 if what == "predict" else 1))
"""


def seconds(what: str, name: str, source: str) -> float | None:
    """Return CPU seconds of something, by a version of the package; None if it cannot do it."""
    root = Path(__file__).parent.parent
    environment: dict[str, Any] = {**os.environ, "PYTHONPATH": source, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(root), what, name],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    return float(done.stdout.split()[-1]) if done.returncode == 0 else None


def _compare(what: str, name: str) -> None:
    sources = {"now": str(Path(__file__).parent.parent / "src")}
    if "RANP_BEFORE" in os.environ:
        sources["before"] = os.environ["RANP_BEFORE"]
    taken: dict[str, list[float]] = {key: [] for key in sources}
    for _ in range(ROUNDS):
        for key, source in sources.items():
            found = seconds(what, name, source)
            taken[key] += [] if found is None else [found]
    now = min(taken["now"])
    text = f"{what:7} {name:15} now {now:6.2f} s"
    if taken.get("before"):
        text += f"; before {min(taken['before']):6.2f} s: {now / min(taken['before']):.2f} of it"
    elif "before" in taken:
        text += "; before: fails"
    print(text, flush=True)


def run() -> None:
    """Prints one line for every run and network."""
    torch.set_num_threads(1)
    print("CPU seconds, the smaller of two")
    for what, names in RUNS.items():
        for name in names:
            _compare(what, name)
