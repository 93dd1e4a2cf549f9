"""Clips in the manner of UCF101 whose 101 classes differ by motion and by nothing else.

Two-coloured patches move over a still, textured background. As in natural video red, green and
blue nearly agree: a colour is a brightness and a slight tint. Looks (colours, shapes, sizes,
angles, places) are drawn without knowledge of the class, and every motion leaves their
distribution at any one moment unchanged: the picture is a torus, so that patches that leave on
one side come back on the other and stay evenly spread, angles are even over the circle, and sizes
sweep their range evenly. A single frame therefore says nothing about the class.

Every clip is mirrored with probability one half, as training does: no class depends on left and
right, but up and down, rolling forwards and backwards, fast and slow, steady and halting do.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from ranp.errors import UsageError

_STREAM = 3  # keeps the random numbers apart from those of the other generators
_PATCHES = 9
_SPEEDS = {"slow": 0.012, "fast": 0.035}  # picture heights per frame
_SPINS = {"slow": 0.1, "fast": 0.3}  # radians per frame
_WAYS = {0: "sideways", 45: "upwards", 90: "up", -45: "downwards", -90: "down"}
_PERIOD = 12  # frames of one swing, halt, pulse
_SIZES = (0.07, 0.13)  # half lengths of a patch, picture heights
_TINT = 0.08  # of the range of brightness; channels correlate by 0.97, in UCF101 by 0.97 to 0.99


@dataclass(frozen=True)
class Motion:
    """A class: how every patch of the clip moves.

    Attributes:
        path: "still", "drift", "halting" (drift that stops and goes), "swing" (to and fro),
            "orbit" or "pulse" (in place, growing and shrinking).
        speed: Key into the speeds; "slow" or "fast".
        degrees: Direction of drift, halting and swing; 0 is sideways, 90 up.
        spin: Radians per frame that a patch turns. The sign counts where a sideways way or an
            orbit gives it a meaning that survives mirroring: rolling forwards or backwards.
        radius: Radius of an orbit.
    """

    path: str
    speed: str = "slow"
    degrees: int = 0
    spin: float = 0.0
    radius: float = 0.0

    @property
    def name(self) -> str:
        """A CamelCase name that is unique among the classes, as UCF101's are."""
        words = [self.path, self.speed] if self.path != "still" else [self.path]
        if self.path in ("drift", "halting", "swing"):
            words.append(_WAYS[self.degrees])
        if self.radius:
            words.append(f"radius{round(self.radius * 100)}")
        if self.spin:
            words.append(f"{'roll' if self.spin > 0 else 'counter'}{round(abs(self.spin) * 100)}")
        return "".join(word.capitalize() for word in words)


def _all_motions() -> tuple[Motion, ...]:
    """101 motions, the most different ones first so that few classes are easy to learn."""
    slow, fast = _SPINS["slow"], _SPINS["fast"]
    clear = [
        Motion("drift", "fast", 90),
        Motion("drift", "fast", -90),
        Motion("drift", "fast", 0),
        Motion("still"),
        Motion("still", spin=fast),
        Motion("swing", "fast", 90),
        Motion("pulse", "fast"),
        Motion("orbit", "fast", radius=0.15),
        Motion("halting", "fast", 0),
        Motion("drift", "slow", 0),
    ]
    speeds = ("fast", "slow")
    straight = [
        (("drift", "halting"), (0, 45, -45), (0.0, fast, -fast)),
        # Straight up or down, or to and fro, a mirror turns one sense of spin into the other.
        (("drift", "halting"), (90, -90), (0.0, slow, fast)),
        (("swing",), (0, 45, 90), (0.0, slow, fast)),
    ]
    family = [
        *(
            Motion(*motion)
            for paths, ways, spins in straight
            for motion in product(paths, speeds, ways, spins)
        ),
        *(
            Motion("orbit", speed, 0, spin, radius)
            for speed, radius, spin in product(speeds, (0.15, 0.3), (0.0, fast, -fast))
        ),
        *(Motion("pulse", speed, 0, spin) for speed, spin in product(speeds, (0.0, slow, fast))),
        *(Motion("still", spin=spin) for spin in (0.0, slow, fast, 2 * fast, slow / 2)),
    ]
    return tuple(dict.fromkeys([*clear, *family]))


MOTIONS = _all_motions()


@dataclass(frozen=True)
class Clip:
    """Content of a clip, before it is rendered at some size and length."""

    motion: Motion
    mirrored: bool
    background: NDArray[np.float64]
    places: NDArray[np.float64]
    angles: NDArray[np.float64]
    sizes: NDArray[np.float64]
    colours: NDArray[np.float64]
    phase: float


def draw_clip(classes: int, seed: int, index: int) -> Clip:
    """Draw clip `index` of the endless synthetic data set `seed`; classes take turns."""
    rng = np.random.default_rng([_STREAM, seed, index])
    return Clip(
        motion=MOTIONS[index % classes],
        mirrored=bool(rng.uniform() < 0.5),
        background=_draw_colours(rng, 60, 180, (6, 6)),
        places=rng.uniform(0, 1, (_PATCHES, 2)),
        angles=rng.uniform(0, 2 * np.pi, _PATCHES),
        sizes=rng.uniform(0, 1, (_PATCHES, 2)),
        colours=_draw_colours(rng, 0, 255, (_PATCHES, 2)),
        phase=float(rng.uniform(0, 1)),
    )


def _draw_colours(
    rng: np.random.Generator, darkest: float, brightest: float, shape: tuple[int, ...]
) -> NDArray[np.float64]:
    """Draw colours [*shape, 3]: a brightness that all channels share, and a tint of each."""
    tint = _TINT * (brightest - darkest)
    brightness = rng.uniform(darkest, brightest, (*shape, 1))
    return np.clip(brightness + rng.uniform(-tint, tint, (*shape, 3)), 0, 255)


def render(clip: Clip, frames: int, height: int, width: int) -> NDArray[np.uint8]:
    """Render the clip as RGB frames [T, H, W, 3]."""
    aspect = width / height
    y = (np.arange(height)[:, None] + 0.5) / height
    x = (np.arange(width)[None, :] + 0.5) / height
    video = np.empty((frames, height, width, 3), np.float32)
    video[:] = _texture(clip.background, height, width)
    moves, turns, sizes = _trajectory(clip, frames)
    for t, patch in product(range(frames), range(_PATCHES)):
        # On the torus, the nearest copy of the patch is never further than half a picture away.
        down = (y - clip.places[patch, 0] - moves[t, 0] + 0.5) % 1.0 - 0.5
        right = (x - clip.places[patch, 1] * aspect - moves[t, 1] + aspect / 2) % aspect
        right -= aspect / 2
        angle = clip.angles[patch] + turns[t]
        u = np.cos(angle) * right + np.sin(angle) * down
        v = np.cos(angle) * down - np.sin(angle) * right
        inside = (np.abs(u) < sizes[t, patch, 0]) & (np.abs(v) < sizes[t, patch, 1])
        video[t][inside] = clip.colours[patch][(u[inside] > 0).astype(int)]
    if clip.mirrored:
        video = video[:, :, ::-1]
    return np.ascontiguousarray(video.round().astype(np.uint8))


def _trajectory(
    clip: Clip, frames: int
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Per frame: displacement (down, right) [T, 2], turn [T] and half lengths [T, P, 2]."""
    motion, t = clip.motion, np.arange(frames, dtype=float)
    speed = _SPEEDS[motion.speed]
    cycle = t / _PERIOD + clip.phase
    swing = np.abs((2 * cycle) % 2 - 1)  # a triangle wave between 0 and 1: even, unlike a sine
    moves = np.zeros((frames, 2))
    unit_sizes = np.broadcast_to(clip.sizes, (frames, _PATCHES, 2))
    if motion.path in ("drift", "halting", "swing"):
        if motion.path == "drift":
            travelled = speed * t
        elif motion.path == "halting":  # twice as fast for the first half of every cycle
            travelled = speed * _PERIOD * (np.floor(cycle) + np.minimum(2 * (cycle % 1), 1))
        else:
            travelled = speed * _PERIOD * swing
        way = np.radians(motion.degrees)
        moves = travelled[:, None] * np.array([-np.sin(way), np.cos(way)])
    elif motion.path == "orbit":
        angle = 2 * np.pi * clip.phase + t * speed / motion.radius
        moves = motion.radius * np.stack([np.sin(angle), np.cos(angle)], axis=1)
    elif motion.path == "pulse":
        rate = 2.0 if motion.speed == "fast" else 1.0
        wave = rate * t[:, None, None] / _PERIOD + 2 * clip.sizes
        unit_sizes = np.abs(wave % 2 - 1)
    low, high = _SIZES
    return moves, motion.spin * t, low + (high - low) * unit_sizes


def _texture(knots: NDArray[np.float64], height: int, width: int) -> NDArray[np.float32]:
    """Colours [H, W, 3] blended between a coarse grid of them."""

    def weights(length: int, count: int) -> NDArray[np.float64]:
        distance = np.abs(np.linspace(0, count - 1, length)[:, None] - np.arange(count))
        return np.asarray(np.clip(1 - distance, 0, None))

    rows, columns = weights(height, knots.shape[0]), weights(width, knots.shape[1])
    blended = np.einsum("hi,wj,ijc->hwc", rows, columns, knots, optimize=True)
    return np.asarray(blended, np.float32)


def check_classes(classes: int) -> None:
    """Raise `UsageError` for more classes than there are motions."""
    if not 1 <= classes <= len(MOTIONS):
        raise UsageError(f"classes of motion must be 1 to {len(MOTIONS)}, got {classes}")
