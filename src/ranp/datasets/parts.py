"""The 16 categories and 50 parts of the ShapeNet part data set, in the official numbering."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ranp.errors import UsageError, suggest


@dataclass(frozen=True)
class Category:
    """A category with its parts, which have the global labels `first` to `first + count - 1`."""

    name: str
    synset: str
    first: int
    parts: tuple[str, ...]

    @property
    def labels(self) -> range:
        """The global labels of the category's parts."""
        return range(self.first, self.first + len(self.parts))


_TABLE = (
    ("Airplane", "02691156", ("body", "wing", "tail", "engine")),
    ("Bag", "02773838", ("handle", "body")),
    ("Cap", "02954340", ("panel", "peak")),
    ("Car", "02958343", ("roof", "hood", "wheel", "body")),
    ("Chair", "03001627", ("back", "seat", "leg", "arm")),
    ("Earphone", "03261776", ("earcup", "headband", "wire")),
    ("Guitar", "03467517", ("head", "neck", "body")),
    ("Knife", "03624134", ("blade", "handle")),
    ("Lamp", "03636649", ("base", "shade", "bulb", "tube")),
    ("Laptop", "03642806", ("keyboard", "screen")),
    ("Motorbike", "03790512", ("tank", "seat", "wheel", "handlebar", "light", "frame")),
    ("Mug", "03797390", ("handle", "cup")),
    ("Pistol", "03948459", ("barrel", "grip", "trigger")),
    ("Rocket", "04099429", ("body", "fin", "nose")),
    ("Skateboard", "04225987", ("wheel", "deck", "truck")),
    ("Table", "04379243", ("top", "leg", "drawer")),
)

_FIRST = np.cumsum([0, *(len(parts) for _, _, parts in _TABLE)]).tolist()

CATEGORIES = tuple(
    Category(name, synset, first, parts)
    for (name, synset, parts), first in zip(_TABLE, _FIRST, strict=False)
)
PARTS = _FIRST[-1]
"""Number of part labels over all categories: 50."""

BY_SYNSET = {category.synset: category for category in CATEGORIES}


def category_named(name: str) -> Category:
    """The category of a name ("Chair")."""
    for category in CATEGORIES:
        if category.name == name:
            return category
    known = [category.name for category in CATEGORIES]
    raise UsageError(f"unknown shape category '{name}'.{suggest(name, known)}")
