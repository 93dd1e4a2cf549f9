"""Which route a convolution should take: each is tried alone, at the convolution's real shapes."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial

import torch
from torch import Tensor, nn

from ranp.resources.comparing import largest_difference
from ranp.resources.latency import Mode
from ranp.resources.machine import describe_machine
from ranp.resources.measuring import time_in_turns
from ranp.resources.timing_cache import TimingCache
from ranp.speed.convolution import DATA, FORWARD, WEIGHT, Route, available_routes
from ranp.speed.geometry import Geometry
from ranp.speed.layout import Layout, as_layout

TOLERANCE = 1e-5
"""How far results may differ, as a share of the largest number in them."""
_ROUNDING = 2.0**-24  # of a float32 number
_WORTH = 0.97  # a route that gains less than this is not taken: it may be noise
_SECONDS_PER_TRIAL, _MOST_REPETITIONS = 0.2, 5
_LONG = 1.0  # seconds; what runs longer needs no repetition


def choose_route(
    module: nn.Conv3d, shape: tuple[int, ...], layout: Layout, mode: Mode, cache: TimingCache
) -> Route:
    """Find the fastest route of a convolution."""
    g = Geometry.of(module)
    x = as_layout(torch.randn(shape), layout)
    weight = torch.randn_like(module.weight, requires_grad=False)
    with torch.no_grad():
        grad = torch.randn_like(FORWARD["library"](x, weight, None, g))
        parts = available_routes(g, x, grad)
        wanted = parts if mode == "train" else {"forward": parts["forward"]}
        seconds: dict[str, dict[str, float]] = {}
        for part, names in wanted.items():
            ways = {name: _way(part, name, x, weight, grad, g) for name in names}
            if len(ways) == 1:
                continue
            tolerance = sum_tolerance(grad) if part == "weight" else TOLERANCE
            what = {
                "work": f"conv3d {part}",
                "shape": list(shape),
                "weight": list(weight.shape),
                **{name: list(v) if isinstance(v, tuple) else v for name, v in asdict(g).items()},
                "layout": layout,
                "ways": names,
                "tolerance": tolerance,
                **describe_machine(x.device),
            }
            seconds[part] = cache.get(what, partial(_measure, ways, tolerance))
    return Route(**{part: _fastest(times) for part, times in seconds.items()})


def _way(
    part: str, name: str, x: Tensor, weight: Tensor, grad: Tensor, g: Geometry
) -> Callable[[], Tensor]:
    if part == "forward":
        return partial(FORWARD[name], x, weight, None, g)
    return partial((DATA if part == "data" else WEIGHT)[name], grad, x, weight, g)


def sum_tolerance(grad: Tensor) -> float:
    """Return how far two gradients of a weight may differ.

    Each is a sum over all voxels. Added up one by one in float32, n numbers are off by about
    sqrt(n) roundings, and ways differ in how many partial sums they keep: at 48^3, by 1e-5.
    """
    terms = grad.numel() // grad.shape[1]
    return max(TOLERANCE, math.sqrt(terms) * _ROUNDING)


def _measure(ways: dict[str, Callable[[], Tensor]], tolerance: float) -> dict[str, float]:
    """Return seconds by way; only of those whose result is the library's."""
    seconds: dict[str, float] = {}
    expected = None
    for name, way in ways.items():
        began = time.perf_counter()
        result = way()
        duration = time.perf_counter() - began
        expected = result if expected is None else expected  # the library's comes first
        if largest_difference([result], [expected]) <= tolerance:
            seconds[name] = duration
    if seconds["library"] > _LONG:
        return seconds
    equal = {name: ways[name] for name in seconds}
    timings = time_in_turns(equal, repetitions(seconds["library"]), warm_up=False)
    return {name: timing.fastest for name, timing in timings.items()}


def _fastest(seconds: dict[str, float]) -> str:
    best = min(seconds, key=lambda name: seconds[name])
    return best if seconds[best] < _WORTH * seconds["library"] else "library"


def repetitions(seconds: float) -> int:
    """Return how often something is worth repeating that takes so long."""
    return max(1, min(_MOST_REPETITIONS, int(_SECONDS_PER_TRIAL / max(seconds, 1e-9))))
