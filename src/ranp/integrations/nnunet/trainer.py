"""nnU-Net's own trainer, as far as scoring needs it: network, batches and loss."""

from __future__ import annotations

import contextlib
import io
import os
import random
import tempfile
import warnings
from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
import torch

from ranp.errors import RanpError, UsageError

Fold = int | Literal["all"]


@contextlib.contextmanager
def open_trainer(
    dataset: str, configuration: str, plans: str, fold: Fold, trainer: str
) -> Iterator[Any]:
    """Yield an initialized trainer of a configuration; what it writes is thrown away.

    Batches are augmented in this process, so that a seed makes them again.

    Args:
        dataset: Name of the dataset.
        configuration: Name of the configuration.
        plans: Name of the plans.
        fold: Fold whose training cases are used.
        trainer: Name of the trainer class.

    Raises:
        UsageError: nnU-Net is not installed, or refuses.
    """
    require_nnunet()
    from nnunetv2.run.run_training import get_trainer_from_args

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with tempfile.TemporaryDirectory() as results, nnunet_environment(nnUNet_results=results):
        try:
            made = get_trainer_from_args(
                dataset, configuration, fold, trainer, plans, device=device
            )
            made.initialize()
        except RanpError:
            raise
        except Exception as error:
            raise UsageError(
                f"nnU-Net cannot start {trainer} on {dataset} {configuration} fold {fold} "
                f"({type(error).__name__}: {error}); nnUNetv2_train would fail in the same way"
            ) from error
        yield made


def require_nnunet() -> None:
    """Refuse to go on without nnU-Net."""
    try:
        import nnunetv2  # noqa: F401
    except ImportError as error:
        raise UsageError(
            f"nnU-Net is needed for this ({error}): pip install 'ranp[nnunet]'"
        ) from error


@contextlib.contextmanager
def nnunet_environment(**variables: str) -> Iterator[None]:
    """Keep nnU-Net quiet, in one process and uncompiled; and other variables as given."""
    wanted = {"nnUNet_n_proc_DA": "0", "nnUNet_compile": "f", **variables}
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed all that nnU-Net's augmentation draws from, and put the states back."""
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])
