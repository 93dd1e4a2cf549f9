"""Full network against slim network, side by side in one run, and against what FLOPs promise."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from typing import Any

from torch import Tensor, nn

from ranp.errors import UsageError
from ranp.resources.latency import MODES, Mode, runner
from ranp.resources.machine import BUSY, describe_machine, load, others_running
from ranp.resources.measuring import (
    Measured,
    mean_of,
    measure_in_turns,
    random_batch,
    zero_label_cross_entropy,
)
from ranp.speed.memory import return_freed_memory
from ranp.speed.optimizing import optimization_of, optimize


@dataclass(frozen=True)
class Comparison:
    """Full against slim for one batch.

    Attributes:
        mode: "train" (forward, loss and backward) or "inference" (forward).
        shape: Shape of the batch.
        full: The full network.
        slim: The slim one.
        theoretical: How many times fewer FLOPs the slim network has.
        treatment: What `ranp.optimize` kept for each network; empty where it was not asked.
        as_given: Seconds that it measured for each network before; empty where it was not asked.
    """

    mode: Mode
    shape: tuple[int, ...]
    full: Measured
    slim: Measured
    theoretical: float
    treatment: Mapping[str, str] = field(default_factory=dict)
    as_given: Mapping[str, float] = field(default_factory=dict)

    @property
    def speedup(self) -> float:
        """How many times as fast the slim network is."""
        return self.full.seconds / self.slim.seconds

    @property
    def realised(self) -> float:
        """The share of the theoretical speed-up that is real."""
        return self.speedup / self.theoretical

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return {**asdict(self), "speedup": self.speedup, "realised": self.realised}


@dataclass(frozen=True)
class Bench:
    """All comparisons of a run, and the machine.

    Attributes:
        comparisons: The comparisons, in the order in which they were measured.
        machine: What was measured on.
        load: Load average when it began.
        others: Threads of other processes that were running when it began.
    """

    comparisons: tuple[Comparison, ...]
    machine: Mapping[str, str | int]
    load: float
    others: float

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return {
            "machine": dict(self.machine),
            "load": self.load,
            "others_running": self.others,
            "comparisons": [comparison.to_dict() for comparison in self.comparisons],
        }


def batch_shapes(
    shape: Sequence[int], edges: Sequence[int], batches: Sequence[int]
) -> list[tuple[int, ...]]:
    """Return shapes of batches: each size of space with each number of samples.

    Args:
        shape: Shape of a batch, as the network takes it.
        edges: Edges of the samples: of volumes every edge changes, of clips that of the frames;
            the shape's own if empty.
        batches: Numbers of samples.
    """
    _, channels, depth, *frame = shape
    is_volume = set(frame) == {depth}
    spaces = [(edge if is_volume else depth, *[edge] * len(frame)) for edge in edges]
    return [(n, channels, *space) for space in spaces or [(depth, *frame)] for n in batches]


def compare_speed(
    full: nn.Module,
    slim: nn.Module,
    shapes: Iterable[Sequence[int]],
    *,
    theoretical: float,
    modes: Iterable[Mode] = MODES,
    optimized: bool = False,
    repetitions: int = 3,
    force: bool = False,
    step: Callable[[str], object] = lambda message: None,
) -> Bench:
    """Measure two networks in turns.

    Args:
        full: The full network.
        slim: The slim one.
        shapes: Shapes of the batches to measure with.
        theoretical: How many times fewer FLOPs the slim network has.
        modes: What to measure.
        optimized: Whether both networks go through `ranp.optimize` first, for every shape.
        repetitions: Timed runs of each network; one more before them warms up, and is the one
            whose memory is measured.
        force: Measure although others use the machine.
        step: `step(message)`, called before each comparison.

    Raises:
        UsageError: Somebody else is using the machine.
    """
    busy, others = load(), others_running()
    if others > BUSY and not force:
        raise UsageError(
            f"the machine is busy ({others:.1f} other threads running, load {busy:.1f}): figures "
            "would not be reliable; wait, or measure nevertheless with --force"
        )
    models = {"full": full, "slim": slim}
    comparisons = []
    with ExitStack() as stack:
        if optimized:
            stack.callback(return_freed_memory)  # which `optimize` is asked to keep
        for shape in map(tuple, shapes):
            for mode in modes:
                step(f"{mode} at {' x '.join(map(str, shape))}")
                comparisons.append(
                    _compare(models, shape, mode, theoretical, optimized, repetitions)
                )
    machine = describe_machine(next(full.parameters()).device)
    return Bench(tuple(comparisons), machine, busy, others)


def _compare(
    models: Mapping[str, nn.Module],
    shape: tuple[int, ...],
    mode: Mode,
    theoretical: float,
    optimized: bool,
    repetitions: int,
) -> Comparison:
    records = {}
    if optimized:
        models = {n: optimize(m, shape, mode, keep_memory=True) for n, m in models.items()}
        records = {name: optimization_of(model) for name, model in models.items()}
    x = random_batch(models["full"], shape)
    for model in models.values():
        model.train(mode == "train")
    runs = {name: runner(model, x, mode, _usual_loss) for name, model in models.items()}
    measured = measure_in_turns(runs, repetitions)
    return Comparison(
        mode,
        shape,
        measured["full"],
        measured["slim"],
        theoretical,
        {name: record.kept for name, record in records.items()},
        {name: record.trials[0].seconds for name, record in records.items()},
    )


def _usual_loss(output: Any) -> Tensor:
    """Cross-entropy where the output has classes, as training would; else the mean."""
    if isinstance(output, Tensor) and output.dim() > 1 and output.shape[1] > 1:
        return zero_label_cross_entropy(output)
    return mean_of(output)
