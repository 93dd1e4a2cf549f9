"""Small networks with every kind of cost and coupling, scores with ties, and their records."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ranp.graph import ChannelGraph, build_graph
from ranp.models.unet3d import UNet3D
from ranp.pipeline import make_plan
from ranp.pruning import Choice, Chooser, Scores
from ranp.pruning.scores import fingerprint
from ranp.recording import make_record


class Mixed(nn.Module):
    """Additions, depthwise and grouped convolutions, all poolings, norms, flatten and softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 12, 3, padding=1)
        self.norm = nn.GroupNorm(2, 12)
        self.depthwise = nn.Conv2d(12, 12, 3, padding=1, groups=12, bias=False)
        self.grouped = nn.Conv2d(12, 16, 3, padding=1, groups=2)
        self.pool = nn.AvgPool2d(2)
        self.expand = nn.Conv2d(16, 20, 1)
        self.project = nn.Conv2d(20, 16, 1)
        self.adaptive = nn.AdaptiveAvgPool2d(2)
        self.linear = nn.Linear(64, 18)
        self.head = nn.Linear(18, 5, bias=False)
        self.softmax = nn.Softmax(1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.depthwise(self.norm(self.stem(x)).relu())
        x = self.pool(self.grouped(x).relu())
        x = x + self.project(self.expand(x).relu())
        x = self.adaptive(x).flatten(1)
        out: Tensor = self.softmax(self.head(self.linear(x).relu()))
        return out


def small_unet() -> nn.Module:
    return UNet3D(in_channels=1, classes=3, levels=3, base_width=8, softmax=True)


NETWORKS = {"unet": (small_unet, (1, 1, 8, 8, 8)), "mixed": (Mixed, (2, 3, 16, 16))}


def random_scores(graph: ChannelGraph, *, ties: bool = False, seed: int = 0) -> Scores:
    """Scores whose layers differ in scale; with ties, of few values, some of them zero."""
    generator = torch.Generator().manual_seed(seed)
    sums = {}
    for name, layer in graph.layers.items():
        values = torch.rand(len(layer), generator=generator, dtype=torch.float64) + 0.01
        if ties:
            values = (4 * values).round() / 4
        sums[name] = values * (1 if ties else 10 ** (2 * torch.rand(1, generator=generator) - 2))
    fan_in = dict.fromkeys(graph.layers, 1)
    return Scores(1, fan_in, {"mpmg": sums}, {"weights": "fresh"}, fingerprint(graph))


def make_chooser(network: str, method: str = "ranp-f", **options: Any) -> Chooser:
    build, shape = NETWORKS[network]
    ties = options.pop("ties", False)
    model = build()
    graph = build_graph(model, shape)
    return Chooser(model, graph, Choice.make(method, **options), random_scores(graph, ties=ties))


def record_of(chooser: Chooser, sparsity: float = 0.4, **about: Any) -> dict[str, Any]:
    name = about.pop("network", "net")
    return make_record(chooser, make_plan(chooser, sparsity, network=name), **about)
