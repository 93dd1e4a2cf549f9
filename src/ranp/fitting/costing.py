"""Costs of choices of channels in each way to train: computed once, nothing is allocated."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from ranp.fitting.target import StepInputAt, no_loss
from ranp.fitting.training_step import TrainingStep
from ranp.graph import Alive, build_graph, slim_meta_copy
from ranp.pruning import Chooser
from ranp.resources import Costs, predict_training_memory
from ranp.resources.budgets import find_resource
from ranp.resources.memory_correction import MemoryCorrection, constant_bytes
from ranp.resources.step_model import NotAProduct, StepModel
from ranp.resources.training_memory import LossNotCounted, TrainingMemory

CPU_MARGIN = 0.015
"""The share of a memory budget that is left over on a CPU: predictions are up to 1 % too small."""

Figures = Mapping[str, float]


@dataclass(frozen=True)
class Costing:
    """Counts and predicts what choices of channels cost.

    `dataclasses.replace` gives another one, for another chooser, that shares what is known.

    Attributes:
        chooser: Whose choices they are; its graph is traced at the size that is trained at.
        input_at: What is trained with in a way to train; the loss takes memory too.
        correction: What predictions are multiplied with, where that was measured on the device.
    """

    chooser: Chooser
    input_at: StepInputAt = no_loss
    correction: MemoryCorrection | None = None
    _memories: dict[tuple[TrainingStep, bytes], TrainingMemory] = field(default_factory=dict)
    _models: dict[TrainingStep, StepModel | None] = field(default_factory=dict)
    _refuted: list[TrainingStep] = field(default_factory=list)
    _resized: dict[tuple[int, ...], Chooser] = field(default_factory=dict)

    def figures(
        self, alive: Alive, step: TrainingStep, resources: Sequence[str]
    ) -> dict[str, float]:
        """Return what living channels cost of some resources, as counted or predicted.

        Latency is left out: it is measured (see `ranp.fitting.latency`).
        """
        result: dict[str, float] = {}
        for name in resources:
            total = find_resource(name).total
            if total is not None:
                result[name] = total(self._costs(alive, step.sample))
            elif name == "memory":
                result[name] = float(self._peak(alive, step))
        return result

    def constants(self, step: TrainingStep) -> Figures:
        """Return what any network takes of some resources, however small."""
        return {"memory": float(constant_bytes(step.device))}

    def memory(self, alive: Alive, step: TrainingStep) -> TrainingMemory:
        """Return the predicted memory of a training step."""
        key = (step, alive.tobytes())
        if key not in self._memories:
            given = self.input_at(step)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", LossNotCounted)  # warned of once, with the result
                predicted = predict_training_memory(
                    slim_meta_copy(self.chooser.model, self.chooser.graph, alive),
                    given.example_input,
                    optimizer=step.optimizer,
                    loss=given.loss,
                    forward=given.forward,
                    precision=step.precision,
                    recompute=step.recompute,
                    device=step.device,
                )
            more = self._corrected(predicted.peak, step) - predicted.peak
            self._memories[key] = replace(
                predicted, peak=predicted.peak + more, allowance=predicted.allowance + more
            )
        return self._memories[key]

    def _corrected(self, peak: int, step: TrainingStep) -> int:
        known = self.correction
        return peak if known is None else known.corrected(peak, step.precision, step.device)

    def confirms(self, figures: Figures, alive: Alive, step: TrainingStep) -> bool:
        """Return whether simulating a step gives the memory that was computed for it.

        Where it does not, steps are simulated from then on, other ways to train as well.
        """
        if "memory" not in figures or self._models.get(step) is None:
            return True
        if self.memory(alive, step).peak == figures["memory"]:
            return True
        self._models[step] = None
        self._refuted.append(step)
        return False

    def is_computed(self, step: TrainingStep, resources: Sequence[str]) -> bool:
        """Return whether all figures are computed, in no time; what is simulated takes a while."""
        model = self._models.get(step)
        return "memory" not in resources or (model is not None and model.least == 1)

    def _peak(self, alive: Alive, step: TrainingStep) -> int:
        """Return the peak of a training step: computed where it is known how, else simulated."""
        is_first = all(known != step for known, _ in self._memories)
        if (step, alive.tobytes()) in self._memories or is_first:
            return self.memory(alive, step).peak
        if step not in self._models:
            self._models[step] = self._model(step)
        model = self._models[step]
        if model is None or not model.covers(alive):
            return self.memory(alive, step).peak
        return self._corrected(model.peak(alive), step)

    def _model(self, step: TrainingStep) -> StepModel | None:
        """Return how the peak follows from channels; None if it is not known."""
        if self._refuted:
            return None
        graph = self.chooser.graph
        full = self.memory(graph.all_alive(), step)
        for known in filter(None, self._models.values()):
            with suppress(NotAProduct):
                return known.rescaled(full)
        for least in (1, 2):
            with suppress(NotAProduct):
                return StepModel.of(graph, lambda trial: self.memory(trial, step), step, least)
        return None

    def _costs(self, alive: Alive, sample: tuple[int, ...]) -> Costs:
        """Count at another size: the same classes, other numbers of voxels."""
        chooser = self.chooser
        if (1, *sample) in chooser.graph.inputs.shapes:
            return chooser.costs(alive)
        if sample not in self._resized:
            graph = build_graph(chooser.model, (1, *sample))
            self._resized[sample] = Chooser(chooser.model, graph, chooser.choice)
        return self._resized[sample].costs(alive)
