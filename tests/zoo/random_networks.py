"""Random small networks for hypothesis: a list of steps, each made from earlier tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from torch import Tensor, nn

INPUT = (2, 4, 4, 4)


class ChannelNorm(nn.Module):
    """Layer norm over channels, by hand."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        centred = x - x.mean(1, keepdim=True)
        normed = centred / (centred.square().mean(1, keepdim=True) + 1e-5).sqrt()
        return self.weight[:, None, None] * normed + self.bias[:, None, None]


class ResponseNorm(nn.Module):
    """A channel's length over the mean of all lengths."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(1, width, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        length = torch.linalg.vector_norm(x, dim=(2, 3), keepdim=True)
        return self.gamma * x * (length / (length.mean(1, keepdim=True) + 1e-6)) + x


_NORMS = {
    "batch": nn.BatchNorm2d,
    "instance": lambda width: nn.InstanceNorm2d(width, affine=True),
    "group": lambda width: nn.GroupNorm(2, width),
    "layer": lambda width: nn.GroupNorm(1, width),
    "layer by hand": ChannelNorm,
    "response": ResponseNorm,
    "prelu": nn.PReLU,
}
_KINDS = (
    "conv",
    "grouped",
    "depthwise",
    "transposed",
    "grouped transposed",
    "again",
    "norm",
    "activation",
    "pool",
    "add",
    "gate",
    "cat",
    "chunk",
    "halves",
    "shuffle",
    "excite",
    "attend",
)


@dataclass(frozen=True)
class Step:
    """One operation: its kind, the tensors it takes, and a number or name that settles details."""

    kind: str
    sources: tuple[int, ...]
    detail: Any


@dataclass(frozen=True)
class Program:
    """A network: steps on tensors that are numbered from the input, 0, on."""

    steps: tuple[Step, ...]
    widths: tuple[int, ...]
    flat: bool


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """Up to nine steps; all widths are even, so that they can be cut and grouped."""
    widths, steps = [INPUT[1]], []
    for _ in range(draw(st.integers(2, 9))):
        kind = draw(st.sampled_from(_KINDS))
        source = draw(st.integers(0, len(widths) - 1))
        sources, detail, width = (source,), None, widths[source]
        if kind in ("conv", "grouped", "transposed", "grouped transposed"):
            width = detail = draw(st.sampled_from((4, 6, 8)))
        elif kind == "depthwise":
            detail = draw(st.sampled_from((1, 2)))
            width *= detail
        elif kind == "again":
            # Runs an earlier layer once more, on a tensor of the right width.
            layers = [i for i, step in enumerate(steps) if step.kind == "conv"]
            fitting = [
                (layer, tensor)
                for layer in layers
                for tensor, here in enumerate(widths)
                if here == widths[steps[layer].sources[0]]
            ]
            if not fitting:
                continue
            detail, source = draw(st.sampled_from(fitting))
            sources, width = (source,), steps[detail].detail
        elif kind == "norm":
            detail = draw(st.sampled_from(sorted(_NORMS)))
        elif kind in ("add", "gate"):
            partners = [i for i, w in enumerate(widths) if w == width]
            sources = (source, draw(st.sampled_from(partners)))
        elif kind == "cat":
            sources = (source, draw(st.integers(0, len(widths) - 1)))
            width += widths[sources[1]]
        elif kind == "halves":
            width //= 2
        if width > 24 or width % 2:
            continue
        steps.append(Step(kind, sources, detail))
        widths.append(width)
    return Program(tuple(steps), tuple(widths), draw(st.booleans()))


class RandomNet(nn.Module):
    """Runs a program; the head takes the last tensor and one of the first."""

    def __init__(self, program: Program) -> None:
        super().__init__()
        self.program = program
        self.layers = nn.ModuleDict()
        widths = program.widths
        for number, step in enumerate(program.steps):
            layer = _layer(step, widths[step.sources[0]])
            if layer is not None:
                self.layers[str(number)] = layer
        width = widths[-1] + widths[len(widths) // 2]
        self.head = nn.Linear(width * 16, 3) if program.flat else nn.Conv2d(width, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        tensors = [x]
        for number, step in enumerate(self.program.steps):
            sources = [tensors[i] for i in step.sources]
            tensors.append(self._run(number, step, sources))
        last = torch.cat([tensors[-1], tensors[len(tensors) // 2]], 1)
        return self.head(last.flatten(1) if self.program.flat else last)

    def _run(self, number: int, step: Step, sources: list[Tensor]) -> Tensor:
        x = sources[0]
        if step.kind == "again":
            return self.layers[str(step.detail)](x)
        if step.kind == "excite":
            return x * torch.sigmoid(self.layers[str(number)](x.mean((2, 3), keepdim=True)))
        if step.kind == "attend":
            features = torch.cat([x.mean(1, keepdim=True), x.amax(1, keepdim=True)], 1)
            return x * torch.sigmoid(self.layers[str(number)](features))
        if str(number) in self.layers:
            return self.layers[str(number)](x)
        if step.kind == "activation":
            return F.gelu(x)
        if step.kind == "pool":
            return F.max_pool2d(x, 3, stride=1, padding=1)
        if step.kind == "add":
            return x + sources[1]
        if step.kind == "gate":
            return x * torch.sigmoid(sources[1])
        if step.kind == "cat":
            return torch.cat(sources, 1)
        if step.kind == "chunk":
            return torch.cat(x.chunk(2, 1)[::-1], 1)
        if step.kind == "halves":
            half = x.shape[1] // 2
            return x[:, :half] - x[:, half:]
        assert step.kind == "shuffle", step.kind
        return x.view(x.shape[0], 2, -1, *x.shape[2:]).transpose(1, 2).reshape(x.shape)


def _layer(step: Step, width: int) -> nn.Module | None:
    if step.kind == "conv":
        return nn.Conv2d(width, step.detail, 3, padding=1)
    if step.kind == "grouped":
        return nn.Conv2d(width, step.detail, 3, padding=1, groups=2)
    if step.kind == "depthwise":
        return nn.Conv2d(width, width * step.detail, 3, padding=1, groups=width)
    if step.kind == "transposed":
        return nn.ConvTranspose2d(width, step.detail, 3, padding=1)
    if step.kind == "grouped transposed":
        return nn.ConvTranspose2d(width, step.detail, 3, padding=1, groups=2)
    if step.kind == "norm":
        return _NORMS[step.detail](width)
    if step.kind == "attend":
        return nn.Conv2d(2, 1, 3, padding=1)
    if step.kind == "excite":
        return nn.Sequential(nn.Conv2d(width, 4, 1), nn.GELU(), nn.Conv2d(4, width, 1))
    return None
