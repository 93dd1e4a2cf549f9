"""Cross-validation folds that depend on names and a seed alone."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ranp.errors import UsageError

FOLDS = 5
FOLD_SEED = 2020
"""The seed of the folds; fixed, so that 'fold 0' is the same set of cases in every run."""


def stratified_folds(strata: Mapping[str, str]) -> dict[str, int]:
    """Deal cases to folds so that each stratum is spread as evenly as it can be.

    Per stratum, the sorted ids are shuffled and dealt in turn; the next stratum goes on where the
    last one ended, so the folds' sizes differ by one at most. The order of `strata` is irrelevant.

    Args:
        strata: Stratum (grade, or one name for all) by case id.

    Returns:
        Fold, 0 to 4, by case id.
    """
    assignment: dict[str, int] = {}
    for stratum in sorted(set(strata.values())):
        ids = sorted(case for case, name in strata.items() if name == stratum)
        rng = np.random.default_rng([FOLD_SEED, zlib.crc32(stratum.encode())])
        for position in rng.permutation(len(ids)):
            assignment[ids[position]] = len(assignment) % FOLDS
    return assignment


def in_split(case_fold: int | None, split: str, fold: int) -> bool:
    """Return whether a case belongs to "validation", which is one fold, or "train", the others.

    A case without a fold cannot be used, and belongs to neither.
    """
    if split not in ("train", "validation"):
        raise UsageError(f"this data set has no split '{split}'; it has train and validation")
    if not 0 <= fold < FOLDS:
        raise UsageError(f"fold must be 0 to {FOLDS - 1}, got {fold}")
    return case_fold is not None and (case_fold == fold) == (split == "validation")


def choose_fold(directory: Path, cases: Sequence[Any], split: str, fold: int) -> tuple[Any, ...]:
    """Return the cases of a split, by their `fold`.

    Raises:
        UsageError: There is none.
    """
    chosen = tuple(case for case in cases if in_split(case.fold, split, fold))
    if not chosen:
        raise UsageError(f"no case of split '{split}' in '{directory}': it has {len(cases)} cases")
    return chosen
