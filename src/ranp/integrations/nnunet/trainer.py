"""nnU-Net's own trainer: network, batches, loss and steps."""

from __future__ import annotations

import contextlib
import io
import json
import os
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch

from ranp.errors import RanpError, UsageError
from ranp.integrations.nnunet.plans import dataset_folder, read_plans
from ranp.trials.loops import random_state, seed_everything, set_random_state

Fold = int | Literal["all"]
TrainerClass = str | type
"""A trainer class of nnU-Net, or its name."""
STOCK_TRAINER = "nnUNetTrainer"


@dataclass(frozen=True)
class TrainerChoice:
    """A trainer of nnU-Net on a configuration of a dataset.

    Attributes:
        dataset: Name of the dataset.
        configuration: Name of the configuration.
        plans: Name of the plans of the full network.
        fold: Fold whose cases train and validate.
        trainer: The trainer class, or its name.
    """

    dataset: str
    configuration: str
    plans: str
    fold: Fold
    trainer: TrainerClass

    @property
    def trainer_name(self) -> str:
        """Name of the trainer class."""
        return self.trainer if isinstance(self.trainer, str) else self.trainer.__name__

    @contextlib.contextmanager
    def open(self) -> Iterator[Any]:
        """Yield an initialized trainer; what it writes is thrown away.

        Output is suppressed only while it starts.

        Raises:
            UsageError: nnU-Net is not installed, or refuses.
        """
        with tempfile.TemporaryDirectory() as results:
            with nnunet_environment(nnUNet_results=results):
                started = self.start()
            yield started

    def start(self) -> Any:
        """Return an initialized trainer; it writes into the results folder of the environment.

        Raises:
            UsageError: nnU-Net is not installed, or refuses.
        """
        try:
            started = self.make("cuda" if torch.cuda.is_available() else "cpu")
            started.initialize()
        except RanpError:
            raise
        except Exception as error:
            raise UsageError(
                f"nnU-Net cannot start {self.trainer_name} on {self.dataset} {self.configuration} "
                f"fold {self.fold} ({type(error).__name__}: {error}); nnUNetv2_train would fail in "
                "the same way"
            ) from error
        return started

    def make(self, device: str) -> Any:
        """Return a trainer as nnUNetv2_train makes it; a class need not be found by name."""
        kind: Any = self.trainer
        if isinstance(kind, str):
            require_nnunet()
            from nnunetv2.utilities.find_objects import recursive_find_trainer_class_by_name

            kind = recursive_find_trainer_class_by_name(kind)
        folder = dataset_folder(self.dataset)
        plans = {**read_plans(folder / f"{self.plans}.json"), "continue_training": False}
        return kind(
            plans=plans,
            configuration=self.configuration,
            fold=self.fold,
            dataset_json=json.loads((folder / "dataset.json").read_bytes()),
            device=torch.device(device),
        )


def require_nnunet() -> None:
    """Raise `UsageError` if nnU-Net is not installed."""
    try:
        import nnunetv2  # noqa: F401
    except ImportError as error:
        raise UsageError(
            f"nnU-Net is needed for this ({error}): pip install 'ranp[nnunet]'"
        ) from error


@contextlib.contextmanager
def nnunet_environment(**variables: str) -> Iterator[None]:
    """Keep nnU-Net quiet, in one process and uncompiled; and other variables as given.

    Batches are then augmented in this process, so that a seed makes them again. All that is printed
    meanwhile is lost, so only calls of nnU-Net belong in it.
    """
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
    before = random_state()
    seed_everything(seed)
    try:
        yield
    finally:
        set_random_state(before)
