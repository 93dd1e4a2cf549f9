"""`prune_plans`: score with nnU-Net's batches and loss, prune, write plans."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any, Literal

from torch import Tensor, nn

from ranp.api import Fit, Result, fit, prune
from ranp.errors import UsageError
from ranp.files import ensure_directory, json_sha256
from ranp.fitting import TrainingStep
from ranp.fitting.costing import Costing
from ranp.fitting.target import StepInputAt, batch_like
from ranp.integrations.nnunet import planner
from ranp.integrations.nnunet.network import set_deep_supervision
from ranp.integrations.nnunet.plans import (
    SlimConfiguration,
    check_configuration,
    dataset_folder,
    read_plans,
    refuse_trained_plans,
    report_folder,
    slim_configuration,
    write_slim_plans,
)
from ranp.integrations.nnunet.racing import TrainerLoop
from ranp.integrations.nnunet.trainer import (
    STOCK_TRAINER,
    Fold,
    TrainerChoice,
    TrainerClass,
    nnunet_environment,
    seeded,
)
from ranp.pruning import Choice, Coupling, Floor, find_method, make_forward
from ranp.pruning.equations import check_sparsity
from ranp.recording import make_record, timeline_of, write_record
from ranp.report.page import write_report
from ranp.resources.budgets import parse_budget, parse_budgets
from ranp.resources.memory_correction import constant_bytes, load_correction
from ranp.resources.training_memory import TrainingMemory
from ranp.trials.allocating import make_allocator
from ranp.trials.candidates import THIN
from ranp.trials.ladder import parse_cost
from ranp.trials.race import DEFAULT_COST, RACE, RaceResult, Racing
from ranp.trials.source_code import code_fingerprint
from ranp.trials.store import Store

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
        race: The race that found the network, if there was one.
    """

    path: Path
    name: str
    configuration: str
    about: SlimConfiguration
    result: Result
    report: Path
    race: RaceResult | None = None


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
    candidates: Sequence[str] | None = None,
    epochs: int | None = None,
    iterations: int | None = None,
    cost: Amount | None = None,
    fold: Fold = 0,
    batches: int = 8,
    out_plans: str | None = None,
    trainer: TrainerClass = STOCK_TRAINER,
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
        sparsity: Share of neurons to remove, in place of budgets.
        method: A name out of `ranp.METHODS`; or "race" for the network that wins a race between
            several, trained a little by nnU-Net's trainer (see `ranp.race`). A race takes one
            budget; stopped at any time, the same call goes on.
        coupling: Rule for channels that are tied by additions (see `ranp.fit`).
        floor: Least number of neurons that every layer keeps, or "auto".
        candidates: Methods that race, the first of which must be beaten; the default ones if None.
        epochs: Epochs of the training that follows a race, which judges after whole epochs; the
            trainer's own number if None.
        iterations: Iterations of these epochs; the trainer's own number if None.
        cost: Most that a race may cost, as a share of the training that follows; "5%" if None.
        fold: Fold whose training cases are scored with; "all" takes all cases.
        batches: Number of batches to score with: nnU-Net's loaders never end.
        out_plans: Name of the slim plans; the plans' name with "_ranp" if not given.
        trainer: nnU-Net's trainer class, or its name.
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
    wanted = {"candidates": candidates, "epochs": epochs, "iterations": iterations, "cost": cost}
    _check_target(sparsity, budgets)
    _check_race(method, budgets, wanted)
    Choice.make(THIN if method == RACE else method, coupling=coupling or "paper", floor=floor or 0)
    folder = dataset_folder(dataset)
    source = read_plans(folder / f"{plans}.json")
    check_configuration(source, configuration, folder)
    name = out_plans or f"{plans}_ranp"
    if name == plans:
        raise UsageError(f"slim plans cannot be called '{name}', as the plans they are made from")
    refuse_trained_plans(folder.name, name, configuration)
    path = folder / f"{name}.json"
    pages = report_folder(path, configuration)
    raced = None
    chosen = TrainerChoice(folder.name, configuration, plans, fold, trainer)
    with chosen.open() as opened, seeded(seed):
        task = _Task.of(opened, device)
        tell(f"Scoring {batches} batches of {folder.name} {configuration}, fold {fold}.")
        options: dict[str, Any] = {"batches": batches, "seed": seed}
        given = {"coupling": coupling, "floor": floor}
        options |= {each: value for each, value in given.items() if value is not None}
        if method == RACE:
            loop = TrainerLoop(
                **vars(chosen),
                epochs=epochs or opened.num_epochs,
                iterations=iterations or opened.num_iterations_per_epoch,
            )
            limits = candidates, DEFAULT_COST if cost is None else cost
            raced, result = task.race(loop, budgets, *limits, pages / RACE, tell, **options)
            raced.save(pages / RACE, command or None)
            memories = task.memories(result)
        elif sparsity is None:
            result = fitted = task.fit(**budgets, **options, method=method, init="keep")
            memories = fitted.memory
        else:
            result = task.prune(**options, sparsity=sparsity, method=method, init="keep")
            memories = task.memories(result)
    full = opened.configuration_manager.configuration
    about = SlimConfiguration(
        network_class_name=full["architecture"]["network_class_name"],
        plan=result.plan.to_dict(),
        source=plans,
        command=command,
        training=task.step.to_dict(),
        memory={each: predicted.peak for each, predicted in memories.items()},
        nnunet_estimate=_estimates(source, full, {"full": task.network, "slim": result.model}),
        instead=_instead(source, full, memory, memories["full"].peak, device),
    )
    write_slim_plans(path, source, configuration, slim_configuration(full, about))
    record = make_record(
        result.chooser,
        result.plan,
        command=command or None,
        data=f"{folder.name}, {configuration}, training cases of fold {fold}",
        timelines={each: timeline_of(predicted) for each, predicted in memories.items()},
        files={path.name: path},
    )
    write_record(ensure_directory(pages), record)
    return PrunedPlans(path, name, configuration, about, result, write_report(pages), raced)


def _check_target(sparsity: float | None, budgets: Mapping[str, Amount | None]) -> None:
    """Refuse a wrong sparsity or budget at once, before nnU-Net's trainer is started."""
    if (sparsity is None) == all(amount is None for amount in budgets.values()):
        raise UsageError("give either a sparsity or budgets: flops, memory, params")
    if sparsity is None:
        parse_budgets(budgets)
    else:
        check_sparsity(sparsity)


def _check_race(
    method: str, budgets: Mapping[str, Amount | None], wanted: Mapping[str, Any]
) -> None:
    """Refuse settings of a race without one, and a race that has not exactly one budget."""
    given = {name: value for name, value in wanted.items() if value is not None}
    if method != RACE:
        for name in given:
            raise UsageError(f"{name} is for method 'race', got method '{method}'")
        return
    if sum(amount is not None for amount in budgets.values()) != 1:
        raise UsageError(
            "a race is between networks of one cost; give one of flops, memory, params"
        )
    for name in ("epochs", "iterations"):
        if given.get(name, 1) <= 0:
            raise UsageError(f"{name} of a race must be positive, got {given[name]}")
    parse_cost(given.get("cost", DEFAULT_COST))
    for candidate in given.get("candidates", ()):
        find_method(candidate)


@dataclass(frozen=True)
class _Task:
    """A network to prune, and how nnU-Net trains it; the digest is of its configuration."""

    network: nn.Module
    loader: Iterable[Any]
    loss: Callable[[Any, Any], Tensor]
    step: TrainingStep
    first: Mapping[str, Any]
    digest: str

    @classmethod
    def of(cls, trainer: Any, device: Literal["cpu", "cuda"]) -> _Task:
        """Take network, batches and loss from an initialized trainer."""
        set_deep_supervision(trainer.network, True)
        with nnunet_environment():
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
        digest = json_sha256(manager.configuration)[:8]
        return cls(trainer.network, chain([first], loader), trainer.loss, step, first, digest)

    def fit(self, **options: Any) -> Fit:
        """Prune just as much as budgets ask for; options are those of `ranp.fit`."""
        step = self.step
        return fit(
            self.network,
            self.loader,
            self.loss,
            batch=step.batch,
            input=step.sample,
            optimizer=step.optimizer,
            precision=step.precision,
            device=step.device,
            **options,
        )

    def prune(self, **options: Any) -> Result:
        """Prune to a sparsity; options are those of `ranp.prune`."""
        example = (1, *self.step.sample)
        return prune(self.network, self.loader, self.loss, example_input=example, **options)

    def race(
        self,
        loop: TrainerLoop,
        budgets: Mapping[str, Amount | None],
        candidates: Sequence[str] | None,
        cost: Amount,
        out: Path,
        tell: Callable[[str], None],
        *,
        batches: int,
        seed: int,
        **settings: Any,
    ) -> tuple[RaceResult, Result]:
        """Race candidates at a budget; runs are kept in a directory, so it can be stopped."""
        allocator = make_allocator(
            lambda: self.network,
            loop.train,
            Store(out / "cells", code=code_fingerprint(Racing, TrainerLoop)),
            score_with=(list(islice(self.loader, batches)), self.loss),
            example_input=(1, *self.step.sample),
            name=f"{loop.name}, {batches} batches scored, configuration {self.digest}",
            step=self.step,
            **{"coupling": "paper", **settings},  # as `fit` has it for a method that was named
        )
        (budget,) = parse_budgets(budgets)
        with closing(allocator.loop):
            raced = Racing(allocator, loop.epochs, candidates, cost, tell).run(budget, seed)
        chooser = raced.allocation.chooser
        slim = raced.plan.apply(self.network, init="keep")
        costs = chooser.costs(), chooser.costs(raced.allocation.alive)
        return raced, Result(slim, raced.plan, chooser, *costs)

    def memories(self, result: Result) -> Mapping[str, TrainingMemory]:
        """Return the predicted memory of a training step, of the full and of the slim network."""
        chooser = result.chooser
        costing = Costing(chooser, self.input_at, load_correction(self.step.device))
        graph = chooser.graph
        networks = {"full": graph.all_alive(), "slim": result.plan.alive(graph)}
        return {name: costing.memory(alive, self.step) for name, alive in networks.items()}

    @property
    def input_at(self) -> StepInputAt:
        """What a training step is given: batches like the first one, and nnU-Net's loss."""
        return batch_like(make_forward(self.loss, None), self.first)


def _estimates(
    plans: Mapping[str, Any], configuration: Mapping[str, Any], networks: Mapping[str, nn.Module]
) -> dict[str, float]:
    """Return nnU-Net's estimates in GB, where its planner can run."""
    found = {
        name: planner.estimate(plans, configuration, network) for name, network in networks.items()
    }
    return {name: value for name, value in found.items() if value is not None}


def _instead(
    plans: Mapping[str, Any],
    configuration: Mapping[str, Any],
    memory: Amount | None,
    full: float,
    device: Literal["cpu", "cuda"],
) -> dict[str, Any]:
    """Return what nnU-Net would plan for the memory budget, if there is one."""
    if memory is None:
        return {}
    budget = parse_budget("memory", memory).absolute(full, constant_bytes(device))
    return planner.plan_instead(plans, configuration, budget.limit / 2**30)
