"""Data sets as they lie on disk, with generators that write the same formats.

Each data set is one file, which ends with its row of the registry: reader, generator, samples in
memory, task, prediction, picture. Those files work on NumPy arrays; torch enters in `cases`
(samples as tensors), `loader` (batches) and `losses`, and is not imported before.
"""

from ranp.datasets import (  # noqa: F401  (they register themselves)
    brats,
    clips,
    decathlon,
    hippocampus,
    shapenet,
    ucf101,
    volumes,
)
from ranp.datasets.access import draw_cases, open_cases, synthesise, synthetic_cases, verify
from ranp.datasets.registry import (
    DATASETS,
    Dataset,
    Facts,
    Reader,
    find_dataset,
    register_dataset,
)

__all__ = [
    "DATASETS",
    "Dataset",
    "Facts",
    "Reader",
    "draw_cases",
    "find_dataset",
    "open_cases",
    "register_dataset",
    "synthesise",
    "synthetic_cases",
    "verify",
]
