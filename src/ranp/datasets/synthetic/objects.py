"""The 16 ShapeNet part categories as parametric objects: the surfaces of every part.

The same part looks different in another category, and different parts look alike (rods are legs,
tubes, necks and wires), so that a label follows from the shape as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from ranp.datasets.synthetic.surfaces import (
    Surface,
    arc,
    box,
    ellipsoid,
    frustum,
    joined,
    rod,
    wheel,
)

Uniform = Callable[[float, float], float]
PartSurfaces = dict[str, list[Surface]]


def _mirrored(make: Callable[[float], Surface]) -> Surface:
    """The same thing left (-1) and right (+1)."""
    return joined([make(-1.0), make(1.0)])


def _legs(length: float, width: float, height: float, radius: float) -> Surface:
    """Four rods from y = 0 down, at the corners of a rectangle."""
    corners = [(x, z) for x in (-length / 2, length / 2) for z in (-width / 2, width / 2)]
    return joined([rod((x, 0, z), (x, -height, z), radius) for x, z in corners])


def _airplane(u: Uniform) -> PartSurfaces:
    length, radius = u(0.8, 1.1), u(0.05, 0.08)
    span, chord, sweep = u(0.35, 0.55), u(0.12, 0.2), u(5, 35)
    at, under = u(-0.05, 0.1), u(0.2, 0.5)
    wing = _mirrored(
        lambda s: box(chord, 0.015, span).at(0, 0, s * span / 2).turned("y", -s * sweep).at(at)
    )
    tail_x = -0.45 * length
    tailplane = _mirrored(
        lambda s: box(chord * 0.5, 0.012, span * 0.4).at(tail_x, 0.03, s * span * 0.2)
    )
    fin = box(chord * 0.6, u(0.12, 0.2), 0.012).at(tail_x, radius + 0.08)
    engine = _mirrored(
        lambda s: rod((0, 0, 0), (0.12, 0, 0), 0.03).at(
            at - under * span * np.tan(np.radians(sweep)), -0.045, s * under * span
        )
    )
    return {
        "body": [ellipsoid(length / 2, radius, radius)],
        "wing": [wing],
        "tail": [tailplane, fin],
        "engine": [engine] if u(0, 1) < 0.85 else [],
    }


def _bag(u: Uniform) -> PartSurfaces:
    length, height, width = u(0.6, 0.9), u(0.4, 0.7), u(0.15, 0.35)
    handle = arc(u(0.12, 0.3), u(0.015, 0.03), 0, 180).at(0, height / 2)
    return {"handle": [handle], "body": [box(length, height, width)]}


def _cap(u: Uniform) -> PartSurfaces:
    radius, height = u(0.35, 0.45), u(0.25, 0.4)
    crown = ellipsoid(radius, height, radius)
    peak = box(u(0.25, 0.45), 0.015, radius * u(1.0, 1.5))

    def upper_half(rng: np.random.Generator, n: int) -> NDArray[np.float64]:
        points = crown.draw(rng, n)
        points[:, 1] = np.abs(points[:, 1])
        return points

    return {
        "panel": [Surface(crown.area / 2, upper_half)],
        "peak": [peak.turned("z", u(-15, 5)).at(radius + 0.08, 0.01)],
    }


def _car(u: Uniform) -> PartSurfaces:
    length, height, width = u(0.85, 1.05), u(0.12, 0.2), u(0.35, 0.45)
    cabin, radius, back = u(0.35, 0.5), u(0.07, 0.1), u(-0.15, -0.02)
    roof = box(cabin * length, u(0.1, 0.16), width * 0.85).at(back, height / 2 + 0.07)
    hood_length = length * u(0.2, 0.28)
    hood = box(hood_length, 0.02, width * 0.9).at((length - hood_length) / 2, height / 2 + 0.02)
    axles = (-length * 0.32, length * 0.32)
    wheels = [
        _mirrored(lambda s, x=x: wheel(radius, 0.06).at(x, -height / 2, s * width / 2))  # type: ignore[misc]
        for x in axles
    ]
    return {"roof": [roof], "hood": [hood], "wheel": wheels, "body": [box(length, height, width)]}


def _chair(u: Uniform) -> PartSurfaces:
    length, width, height = u(0.4, 0.55), u(0.4, 0.55), u(0.35, 0.5)
    back_height, tilt = u(0.35, 0.6), u(0, 15)
    back = box(0.04, back_height, width).at(0, back_height / 2).turned("z", tilt)
    arm_height = u(0.12, 0.22)
    post = rod((length * 0.3, 0, 0), (length * 0.3, arm_height, 0), 0.015)
    arm = joined([box(length * 0.8, 0.03, 0.04).at(0, arm_height), post])
    arms = _mirrored(lambda s: arm.at(0, 0, s * width / 2))
    if u(0, 1) < 0.7:
        legs = _legs(length * 0.85, width * 0.85, height, u(0.015, 0.035))
    else:  # an office chair: one column on a star of feet
        feet = [
            rod((0, -height, 0), (0.25 * np.cos(a), -height, 0.25 * np.sin(a)), 0.018)
            for a in np.arange(5) * 2 * np.pi / 5
        ]
        legs = joined([rod((0, 0, 0), (0, -height, 0), 0.025), *feet])
    return {
        "back": [back.at(-length / 2)],
        "seat": [box(length, u(0.03, 0.08), width)],
        "leg": [legs],
        "arm": [arms] if u(0, 1) < 0.5 else [],
    }


def _earphone(u: Uniform) -> PartSurfaces:
    radius, cup = u(0.3, 0.4), u(0.1, 0.16)
    cups = _mirrored(lambda s: rod((s * radius, 0, 0), (s * (radius - 0.08), 0, 0), cup))
    wire = rod((-radius, -cup, 0), (-radius + u(-0.1, 0.2), -u(0.4, 0.7), u(-0.1, 0.1)), 0.012)
    return {
        "earcup": [cups],
        "headband": [arc(radius, u(0.015, 0.03), 0, 180).at(0, cup * 0.6)],
        "wire": [wire] if u(0, 1) < 0.7 else [],
    }


def _guitar(u: Uniform) -> PartSurfaces:
    neck, depth = u(0.5, 0.65), u(0.05, 0.11)
    lower, upper = u(0.2, 0.26), u(0.15, 0.2)
    body = [ellipsoid(lower, depth, lower), ellipsoid(upper, depth, upper).at(lower * 0.9)]
    nut = lower * 0.9 + upper + neck
    return {
        "head": [box(u(0.1, 0.16), 0.03, u(0.07, 0.11)).at(nut + 0.06)],
        "neck": [box(neck, 0.03, 0.05).at(nut - neck / 2)],
        "body": body,
    }


def _knife(u: Uniform) -> PartSurfaces:
    blade, handle, width = u(0.45, 0.7), u(0.25, 0.4), u(0.06, 0.12)
    return {
        "blade": [box(blade, width, 0.008).at(blade / 2)],
        "handle": [box(handle, width * u(0.5, 1.0), u(0.03, 0.06)).at(-handle / 2)],
    }


def _lamp(u: Uniform) -> PartSurfaces:
    height, shade = u(0.6, 1.0), u(0.18, 0.3)
    shade_height, base = u(0.15, 0.3), u(0.12, 0.22)
    return {
        "base": [frustum(base, base * u(0.3, 0.9), u(0.03, 0.08))],
        "shade": [
            frustum(shade, shade * u(0.4, 0.9), shade_height, capped=False).at(0, height - 0.1)
        ],
        "bulb": [ellipsoid(0.05, 0.06, 0.05).at(0, height)] if u(0, 1) < 0.5 else [],
        "tube": [rod((0, 0.05, 0), (0, height, 0), u(0.012, 0.025))],
    }


def _laptop(u: Uniform) -> PartSurfaces:
    depth, width, opening = u(0.4, 0.55), u(0.6, 0.75), u(-35, 10)
    # The lid stands up from the hinge at the back edge and leans by the opening angle.
    screen = box(0.015, depth, width).at(0, depth / 2).turned("z", -opening)
    return {"keyboard": [box(depth, 0.03, width)], "screen": [screen.at(-depth / 2, 0.015)]}


def _motorbike(u: Uniform) -> PartSurfaces:
    base, radius = u(0.6, 0.75), u(0.15, 0.2)
    wheels = [wheel(radius, 0.06).at(s * base / 2) for s in (-1, 1)]
    bar_y, bar_z = u(0.33, 0.42), u(0.15, 0.22)
    handlebar = rod((base * 0.3, bar_y, -bar_z), (base * 0.3, bar_y, bar_z), 0.014)
    frame = [
        rod((-base / 2, 0, 0), (0, 0.02, 0), 0.025),
        rod((base / 2, 0, 0), (base * 0.3, bar_y, 0), 0.02),
        box(0.28, 0.2, 0.12).at(0, 0.06),
    ]
    return {
        "tank": [ellipsoid(0.13, 0.07, 0.07).at(0.1, 0.24)],
        "seat": [box(u(0.22, 0.34), 0.05, 0.11).at(-0.16, 0.22)],
        "wheel": wheels,
        "handlebar": [handlebar],
        "light": [ellipsoid(0.05, 0.05, 0.05).at(base * 0.3 + 0.07, bar_y - 0.06)],
        "frame": frame,
    }


def _mug(u: Uniform) -> PartSurfaces:
    radius, height = u(0.25, 0.35), u(0.5, 0.75)
    cup = joined(
        [
            frustum(radius * u(0.8, 1.0), radius, height, capped=False),
            frustum(radius * 0.8, radius * 0.8, 0.001),
        ]
    )
    handle = arc(height * u(0.22, 0.32), u(0.02, 0.035), -90, 90).at(radius, height / 2)
    return {"handle": [handle], "cup": [cup]}


def _pistol(u: Uniform) -> PartSurfaces:
    length, height = u(0.7, 0.9), u(0.1, 0.16)
    grip_height, tilt = u(0.3, 0.42), u(5, 25)
    grip = box(u(0.12, 0.17), grip_height, 0.07).at(0, -grip_height / 2).turned("z", -tilt)
    guard = arc(0.07, 0.012, 180, 360).at(-length * 0.13, -height / 2)
    return {
        "barrel": [box(length, height, 0.08)],
        "grip": [grip.at(-length * 0.36, -height / 2)],
        "trigger": [guard],
    }


def _rocket(u: Uniform) -> PartSurfaces:
    length, radius, fins = u(0.6, 0.8), u(0.06, 0.1), 3 + int(u(0, 2))
    size = u(0.12, 0.2)
    fin = box(size, 0.012, size).at(-length / 2 + size / 2, 0, radius + size / 2)
    return {
        "body": [rod((-length / 2, 0, 0), (length / 2, 0, 0), radius)],
        "fin": [fin.turned("x", 360 * k / fins) for k in range(fins)],
        "nose": [frustum(radius, 0.002, u(0.15, 0.3)).turned("z", -90).at(length / 2)],
    }


def _skateboard(u: Uniform) -> PartSurfaces:
    length, width, radius = u(0.75, 1.0), u(0.2, 0.28), u(0.035, 0.055)
    axle, under = length * u(0.28, 0.36), -0.07
    kick = [
        box(0.12, 0.02, width).at(s * 0.06).turned("z", s * u(5, 25)).at(s * length / 2)
        for s in (-1, 1)
    ]
    return {
        "wheel": [
            wheel(radius, 0.05).at(x, under, z)
            for x in (-axle, axle)
            for z in (-width * 0.45, width * 0.45)
        ],
        "deck": [box(length, 0.02, width), *kick],
        "truck": [box(0.06, 0.06, width * 0.6).at(x, under + 0.015) for x in (-axle, axle)],
    }


def _table(u: Uniform) -> PartSurfaces:
    length, width, height = u(0.7, 1.0), u(0.4, 0.7), u(0.35, 0.6)
    if u(0, 1) < 0.7:
        top = box(length, 0.04, width)
        legs = _legs(length * 0.9, width * 0.85, height, u(0.02, 0.045))
    else:  # round, on one column
        top = frustum(length / 2, length / 2, 0.04)
        legs = joined(
            [rod((0, 0, 0), (0, -height, 0), 0.05), frustum(0.2, 0.15, 0.03).at(0, -height)]
        )
    drawer = box(length * 0.35, u(0.12, 0.25), width * 0.8).at(u(-0.2, 0.2) * length, -0.1)
    return {"top": [top], "leg": [legs], "drawer": [drawer] if u(0, 1) < 0.4 else []}


_ALL = (
    *(_airplane, _bag, _cap, _car, _chair, _earphone, _guitar, _knife),
    *(_lamp, _laptop, _motorbike, _mug, _pistol, _rocket, _skateboard, _table),
)
BUILDERS: Mapping[str, Callable[[Uniform], PartSurfaces]] = {
    build.__name__.removeprefix("_").capitalize(): build for build in _ALL
}
"""For every category, the surfaces of its parts, proportions drawn from `u(low, high)`."""
