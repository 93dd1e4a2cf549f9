"""Surfaces that points can be drawn from, uniformly by area: what the synthetic shapes are made of.

Axes: x forward, y up, z to the right, as the shapes of ShapeNet lie.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Points = NDArray[np.float64]
Vector = tuple[float, float, float]


@dataclass(frozen=True)
class Surface:
    """A surface: its area, and a function that draws n points [n, 3] on it."""

    area: float
    draw: Callable[[np.random.Generator, int], Points]

    def at(self, x: float = 0.0, y: float = 0.0, z: float = 0.0) -> Surface:
        """Return the surface moved to another place."""
        offset = np.array([x, y, z])
        return Surface(self.area, lambda rng, n: self.draw(rng, n) + offset)

    def turned(self, axis: str, degrees: float) -> Surface:
        """Return the surface rotated about a coordinate axis through the origin."""
        rotation = rotation_matrix(axis, degrees)
        return Surface(self.area, lambda rng, n: self.draw(rng, n) @ rotation.T)


def rotation_matrix(axis: str, degrees: float) -> NDArray[np.float64]:
    """Return the right-handed rotation about a coordinate axis."""
    c, s = np.cos(np.radians(degrees)), np.sin(np.radians(degrees))
    first, second = {"x": (1, 2), "y": (2, 0), "z": (0, 1)}[axis]
    matrix = np.eye(3)
    matrix[first, first] = matrix[second, second] = c
    matrix[first, second], matrix[second, first] = -s, s
    return matrix


def joined(surfaces: Sequence[Surface]) -> Surface:
    """Several surfaces as one."""
    areas = np.array([surface.area for surface in surfaces])

    def draw(rng: np.random.Generator, n: int) -> Points:
        shares = rng.multinomial(n, areas / areas.sum())
        return np.concatenate([s.draw(rng, k) for s, k in zip(surfaces, shares, strict=True)])

    return Surface(float(areas.sum()), draw)


def box(length: float, height: float, width: float) -> Surface:
    """Return an axis-parallel box centred in the origin: extents along x, y, z."""
    extent = np.array([length, height, width])
    faces = np.array([height * width, length * width, length * height])

    def draw(rng: np.random.Generator, n: int) -> Points:
        points = rng.uniform(-0.5, 0.5, (n, 3))
        normal = rng.choice(3, size=n, p=faces / faces.sum())
        points[np.arange(n), normal] = rng.choice((-0.5, 0.5), size=n)
        return np.asarray(points * extent)

    return Surface(float(2 * faces.sum()), draw)


def frustum(bottom: float, top: float, height: float, *, capped: bool = True) -> Surface:
    """Return a frustum standing on y = 0 with radii `bottom` and `top`; a cylinder if equal."""
    side = np.pi * (bottom + top) * np.hypot(height, bottom - top)
    caps = np.pi * np.array([bottom**2, top**2]) * capped
    areas = np.array([side, *caps])

    def draw(rng: np.random.Generator, n: int) -> Points:
        angle = rng.uniform(0, 2 * np.pi, n)
        which = rng.choice(3, size=n, p=areas / areas.sum())
        u = rng.uniform(0, 1, n)
        # Along the side the density grows with the radius: invert its integral.
        squared = bottom**2 + u * (top**2 - bottom**2)
        t = u if bottom == top else (np.sqrt(squared) - bottom) / (top - bottom)
        radius = np.choose(
            which, (bottom + t * (top - bottom), bottom * np.sqrt(u), top * np.sqrt(u))
        )
        y = np.where(which == 0, t * height, np.where(which == 1, 0.0, height))
        return np.stack([radius * np.cos(angle), y, radius * np.sin(angle)], axis=1)

    return Surface(float(areas.sum()), draw)


def rod(start: Vector, end: Vector, radius: float) -> Surface:
    """Return a cylinder from one point to another."""
    a, b = np.array(start), np.array(end)
    length = float(np.linalg.norm(b - a))
    up = (b - a) / length
    side = np.cross(up, np.eye(3)[np.argmin(np.abs(up))])
    side /= np.linalg.norm(side)
    frame = np.stack([side, up, np.cross(side, up)])
    upright = frustum(radius, radius, length)
    return Surface(upright.area, lambda rng, n: upright.draw(rng, n) @ frame + a)


def wheel(radius: float, width: float) -> Surface:
    """Return a disc in the x-y plane, centred in the origin, its axle along z."""
    return rod((0, 0, -width / 2), (0, 0, width / 2), radius)


def ellipsoid(x: float, y: float, z: float) -> Surface:
    """Return an ellipsoid with the given radii, centred in the origin."""
    radii = np.array([x, y, z])
    p = 1.6075  # Knud Thomsen's approximation of the area, within 1.1 %
    powers = radii**p
    pairs = powers[0] * powers[1] + powers[0] * powers[2] + powers[1] * powers[2]
    area = 4 * np.pi * (pairs / 3) ** (1 / p)

    def draw(rng: np.random.Generator, n: int) -> Points:
        # Uniform on the sphere, then thinned by the local stretch of area: rejection.
        chosen = np.empty((0, 3))
        while len(chosen) < n:
            unit = rng.normal(size=(2 * n + 16, 3))
            unit /= np.linalg.norm(unit, axis=1, keepdims=True)
            stretch = np.linalg.norm(unit / radii, axis=1) * radii.min()
            chosen = np.concatenate([chosen, unit[rng.uniform(size=len(unit)) < stretch]])
        return np.asarray(chosen[:n] * radii)

    return Surface(float(area), draw)


def arc(radius: float, thickness: float, start: float, end: float) -> Surface:
    """Return a bent tube in the x-y plane about the origin, from `start` to `end` in degrees."""
    low, high = np.radians(start), np.radians(end)

    def draw(rng: np.random.Generator, n: int) -> Points:
        along, around = rng.uniform(low, high, n), rng.uniform(0, 2 * np.pi, n)
        distance = radius + thickness * np.cos(around)
        return np.stack(
            [distance * np.cos(along), distance * np.sin(along), thickness * np.sin(around)], axis=1
        )

    return Surface(float((high - low) * radius * 2 * np.pi * thickness), draw)
