"""`prune_plans`: score with nnU-Net's batches and loss, prune, write plans."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from torch import Tensor, nn

from ranp.api import Result, fit, prune
from ranp.errors import UsageError
from ranp.files import ensure_directory
from ranp.fitting import Fit, TrainingStep
from ranp.fitting.target import batch_like
from ranp.integrations.nnunet import planner
from ranp.integrations.nnunet.network import set_deep_supervision
from ranp.integrations.nnunet.plans import (
    SlimConfiguration,
    check_configuration,
    dataset_folder,
    read_plans,
    report_folder,
    slim_configuration,
    write_slim_plans,
)
from ranp.integrations.nnunet.trainer import Fold, open_trainer, seeded
from ranp.pruning import Coupling, Floor, make_forward
from ranp.recording import make_record, timeline_of, write_record
from ranp.report.page import write_report
from ranp.resources import predict_training_memory
from ranp.resources.training_memory import TrainingMemory

Amount = str | float


@dataclass(frozen=True)
class PrunedPlans:
    """What `prune_plans` wrote.

    Attributes:
        path: The plans file.
        name: Name of the plans, for nnU-Net's `-p`.
        configuration: Name of the configuration.
        about: What the file holds of the slim network.
        result: The slim network, its plan and its costs.
        report: The report page.
    """

    path: Path
    name: str
    configuration: str
    about: SlimConfiguration
    result: Result
    report: Path


def prune_plans(
    dataset: int | str,
    configuration: str,
    plans: str = "nnUNetPlans",
    *,
    flops: Amount | None = None,
    memory: Amount | None = None,
    params: Amount | None = None,
    sparsity: float | None = None,
    method: str = "ranp-f",
    coupling: Coupling | None = None,
    floor: Floor | None = None,
    fold: Fold = 0,
    batches: int = 8,
    out_plans: str | None = None,
    trainer: str = "nnUNetTrainer",
    device: Literal["cpu", "cuda"] = "cuda",
    seed: int = 0,
    command: str = "",
    tell: Callable[[str], None] = lambda message: None,
) -> PrunedPlans:
    """Prune a configuration of nnU-Net's plans, and write plans for the slim network.

    The network is scored at initialization, with the batches and the loss of nnU-Net's trainer on
    the training cases of one fold; the slim network serves all folds. Patch, batch and
    preprocessed data stay as they are.

    Args:
        dataset: Number or name of a preprocessed dataset.
        configuration: Such as "3d_fullres".
        plans: Name of nnU-Net's plans.
        flops: Budget of a forward pass of one sample: "10%", "20GFLOPs".
        memory: Budget of a training step at the plan's patch and batch: "8GiB", "50%".
        params: Budget of parameters: "3M", "10%".
        sparsity: Share of neurons to remove, in the place of budgets.
        method: A name out of `ranp.METHODS`.
        coupling: Rule for channels that are tied by additions (see `ranp.fit`).
        floor: Least number of neurons that every layer keeps, or "auto".
        fold: Fold whose training cases are scored with; "all" takes all cases.
        batches: Number of batches to score with: nnU-Net's loaders never end.
        out_plans: Name of the slim plans; the plans' name with "_ranp" if not given.
        trainer: Name of nnU-Net's trainer class.
        device: Device that the network will be trained on: memory is predicted for it, with
            mixed precision on "cuda" as nnU-Net trains there.
        seed: Seed of the batches, and of the fresh weights that are scored.
        command: The command line that makes it again, for the report.
        tell: Called with messages for the user.

    Raises:
        UsageError: Something that was named does not exist.
        IntegrityError: The plans are not nnU-Net's, or the preprocessed data is missing.
        InfeasibleError: The budget cannot be reached.
    """
    budgets = {"flops": flops, "memory": memory, "params": params}
    if (sparsity is None) == all(amount is None for amount in budgets.values()):
        raise UsageError("give either a sparsity or budgets: flops, memory, params")
    folder = dataset_folder(dataset)
    source = read_plans(folder / f"{plans}.json")
    check_configuration(source, configuration, folder)
    name = out_plans or f"{plans}_ranp"
    if name == plans:
        raise UsageError(f"slim plans cannot be called '{name}', as the plans they are made from")
    with open_trainer(folder.name, configuration, plans, fold, trainer) as opened, seeded(seed):
        task = _Task.of(opened, device)
        tell(f"Scoring {batches} batches of {folder.name} {configuration}, fold {fold}.")
        how: dict[str, Any] = {"method": method, "batches": batches, "seed": seed, "init": "keep"}
        given = {"coupling": coupling, "floor": floor}
        how |= {each: value for each, value in given.items() if value is not None}
        result, memories = task.fit(budgets, how) if sparsity is None else task.prune(sparsity, how)
    full = opened.configuration_manager.configuration
    about = SlimConfiguration(
        network_class_name=full["architecture"]["network_class_name"],
        plan=result.plan.to_dict(),
        source=plans,
        command=command,
        training=task.step.to_dict(),
        memory={each: predicted.peak for each, predicted in memories.items()},
        nnunet_estimate=_estimates(source, full, {"full": task.network, "slim": result.model}),
        instead=_instead(source, full, result),
    )
    path = folder / f"{name}.json"
    write_slim_plans(path, source, configuration, slim_configuration(full, about))
    record = make_record(
        result.chooser,
        result.plan,
        command=command or None,
        data=f"{folder.name}, {configuration}, training cases of fold {fold}",
        timelines={each: timeline_of(predicted) for each, predicted in memories.items()},
        files={path.name: path},
    )
    pages = ensure_directory(report_folder(path, configuration))
    write_record(pages, record)
    return PrunedPlans(path, name, configuration, about, result, write_report(pages))


@dataclass(frozen=True)
class _Task:
    """A network to prune, and how nnU-Net trains it."""

    network: nn.Module
    loader: Iterable[Any]
    loss: Callable[[Any, Any], Tensor]
    step: TrainingStep
    first: Mapping[str, Any]

    @classmethod
    def of(cls, trainer: Any, device: Literal["cpu", "cuda"]) -> _Task:
        """Take network, batches and loss from an initialized trainer."""
        set_deep_supervision(trainer.network, True)
        loader, _ = trainer.get_dataloaders()
        first = next(loader)
        manager = trainer.configuration_manager
        step = TrainingStep(
            batch=manager.batch_size,
            sample=(trainer.num_input_channels, *manager.patch_size),
            optimizer="momentum",
            precision="16" if device == "cuda" else "32",
            device=device,
        )
        return cls(trainer.network, chain([first], loader), trainer.loss, step, first)

    def fit(
        self, budgets: Mapping[str, Amount | None], how: Mapping[str, Any]
    ) -> tuple[Result, Mapping[str, TrainingMemory]]:
        """Prune just as much as the budgets ask for."""
        step = self.step
        fitted = fit(
            self.network,
            self.loader,
            self.loss,
            memory=budgets["memory"],
            flops=budgets["flops"],
            params=budgets["params"],
            batch=step.batch,
            input=step.sample,
            optimizer=step.optimizer,
            precision=step.precision,
            device=step.device,
            **how,
        )
        return fitted, fitted.memory

    def prune(
        self, sparsity: float, how: Mapping[str, Any]
    ) -> tuple[Result, Mapping[str, TrainingMemory]]:
        """Prune to a sparsity."""
        example = (1, *self.step.sample)
        result = prune(
            self.network, self.loader, self.loss, sparsity=sparsity, example_input=example, **how
        )
        given = batch_like(make_forward(self.loss, None), self.first)(self.step)
        networks = {"full": self.network, "slim": result.model}
        return result, {
            name: predict_training_memory(
                network,
                given.example_input,
                optimizer=self.step.optimizer,
                forward=given.forward,
                precision=self.step.precision,
                device=self.step.device,
            )
            for name, network in networks.items()
        }


def _estimates(
    plans: Mapping[str, Any], configuration: Mapping[str, Any], networks: Mapping[str, nn.Module]
) -> dict[str, float]:
    """Return nnU-Net's estimates in GB, where its planner can run."""
    found = {
        name: planner.estimate(plans, configuration, network) for name, network in networks.items()
    }
    return {name: value for name, value in found.items() if value is not None}


def _instead(
    plans: Mapping[str, Any], configuration: Mapping[str, Any], result: Result
) -> dict[str, Any]:
    """Return what nnU-Net would plan for the memory budget, if there is one."""
    limits = {b.resource: b.limit for b in result.budgets} if isinstance(result, Fit) else {}
    if "memory" not in limits:
        return {}
    return planner.plan_instead(plans, configuration, limits["memory"] / 2**30)
