"""Training steps of slim networks at the same FLOPs: ranp beside Torch-Pruning."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import ranp
from ranp.graph import ChannelGraph, build_graph
from ranp.models import UNet3D
from ranp.pruning import Choice, Chooser
from ranp.pruning.search import meet_budget
from ranp.resources import count
from ranp.resources.budgets import Budget
from ranp.resources.latency import runner
from ranp.resources.measuring import time_in_turns
from ranp.slimming import slim_model

RATIO = 0.5
EDGE, REPETITIONS = 32, 5
_LEVELS = (16, 32, 64, 128)
_MONAI: dict[str, dict[str, Any]] = {
    "UNet": {"channels": _LEVELS, "strides": (2, 2, 2), "num_res_units": 2, "norm": "batch"},
    "BasicUNet": {"features": (16, 16, 32, 64, 128, 16), "norm": "batch"},
    "AttentionUnet": {"channels": _LEVELS, "strides": (2, 2, 2)},
    "SegResNet": {"init_filters": 16, "blocks_down": (1, 2, 2), "blocks_up": (1, 1)},
    "SegResNet, batch norm": {
        "init_filters": 16,
        "blocks_down": (1, 2, 2),
        "blocks_up": (1, 1),
        "norm": "batch",
    },
    "DynUNet": {
        "kernel_size": (3, 3, 3),
        "strides": (1, 2, 2),
        "upsample_kernel_size": (2, 2),
        "filters": (16, 32, 64),
        "norm_name": "batch",
    },
    "DenseNet": {"init_features": 32, "growth_rate": 16, "block_config": (4, 4)},
    "RegUNet": {"num_channel_initial": 16, "depth": 2},
}


def networks() -> dict[str, Callable[[], nn.Module]]:
    """Return what builds each network of the table."""
    import monai.networks.nets as nets

    def monai(name: str, settings: dict[str, Any]) -> Callable[[], nn.Module]:
        kind = getattr(nets, name.partition(",")[0])
        common = {"spatial_dims": 3, "in_channels": 1, "out_channels": 3}
        return lambda: kind(**common, **settings)

    unet = {"in_channels": 1, "classes": 3, "levels": 3, "base_width": 16}
    return {
        "3D-UNet of the paper": lambda: UNet3D(**unet),
        **{f"MONAI {name}": monai(name, settings) for name, settings in _MONAI.items()},
    }


def output_layers(model: nn.Module, graph: ChannelGraph) -> list[nn.Module]:
    """Return the layers of which nothing may be removed, which Torch-Pruning has to be told."""
    modules = dict(model.named_modules())
    return [
        modules[name]
        for name, layer in graph.layers.items()
        if name in modules and not graph.removable[layer.neurons].any()
    ]


def by_torch_pruning(model: nn.Module, x: Tensor, graph: ChannelGraph) -> nn.Module:
    """Remove half of the channels of every layer, by magnitude."""
    import torch_pruning

    slim = copy.deepcopy(model).eval()
    torch_pruning.pruner.BasePruner(
        slim,
        x,
        importance=torch_pruning.importance.GroupMagnitudeImportance(p=2),
        pruning_ratio=RATIO,
        ignored_layers=output_layers(slim, graph),
    ).step()
    slim(x)
    return slim


def print_steps() -> None:
    """Print CPU time of a training step, in turns: both slim networks, ours optimized, the full."""
    print(
        "\n| network | full | Torch-Pruning | ranp | ranp, optimized | GFLOPs full | slim | ranp |"
    )
    print("|---|" + 7 * "---:|")
    for name, build in networks().items():
        torch.manual_seed(0)
        model, x = build(), torch.randn(1, 1, EDGE, EDGE, EDGE)
        graph = build_graph(model, x)
        full = count(model, graph)
        try:
            theirs = by_torch_pruning(model, x, graph)
            limit = count(theirs, build_graph(theirs, x)).gflops * 1e9
            found = ""
        except Exception as error:  # whatever a peer raises is its outcome
            theirs, limit, found = None, RATIO**2 * full.gflops * 1e9, type(error).__name__
        chooser = Chooser(model, graph, Choice.make("thin", floor=1))
        _, alive = meet_budget(chooser, [Budget("flops", limit)])
        ours = slim_model(model, graph, alive, init="keep")
        steps = {"full": model, "ranp": ours, "optimized": ranp.optimize(ours, x, "train")}
        if theirs is not None:
            steps["Torch-Pruning"] = theirs
        timings = time_in_turns(
            {key: runner(net.train(), x, "train") for key, net in steps.items()},
            REPETITIONS,
            time.process_time,
        )
        cells = [
            f"{1000 * timings[key].fastest:.0f} ms" if key in timings else f"refused ({found})"
            for key in ("full", "Torch-Pruning", "ranp", "optimized")
        ]
        cells += [f"{full.gflops:.2f}", f"{limit / 1e9:.3f}", f"{chooser.costs(alive).gflops:.3f}"]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)
