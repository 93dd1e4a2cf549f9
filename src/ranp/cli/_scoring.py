"""What a network is scored with on the command line; how scoring is shown and interrupted.

Imports torch: commands import this module when they run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

import typer
from torch import Tensor
from torch.nn import functional

from ranp.cli._common import next_command
from ranp.cli._networks import Network, check_directory, names_loader, open_loader
from ranp.cli._options import SCORING, Output, ScoringOptions, check_loss
from ranp.datasets import find_dataset, open_cases, synthetic_cases
from ranp.datasets.loader import Loader
from ranp.datasets.voxels import EMPTY
from ranp.errors import UsageError, is_out_of_memory
from ranp.peeking import Batches, peek_blamed
from ranp.pipeline import Scoring
from ranp.progress import ScoringBar
from ranp.pruning import Method, Scores, make_forward
from ranp.pruning.batches import batch_size
from ranp.pruning.distributed import loader_length
from ranp.resources.budgets import describe
from ranp.signals import GracefulStop
from ranp.user_code import describe_failure, load_object

DEFAULT_SAMPLES = 8
"""Samples to score with if nothing else is said."""
_WEIGHTS_ALONE = "its weights alone"


@dataclass(frozen=True)
class Source:
    """What to score with.

    Attributes:
        batches: Loader and its first batch; empty where weights alone are scored.
        scoring: How they are scored; with scores that exist already, nothing is.
        about: One-line description.
        batch: Samples of a batch of the user's own loader; None for other sources.
    """

    batches: Batches
    scoring: Scoring
    about: str
    batch: int | None = None


def cross_entropy(output: Tensor, target: Tensor) -> Tensor:
    """Return the cross-entropy; empty voxels are ignored."""
    try:
        return functional.cross_entropy(output, target, ignore_index=EMPTY)
    except (RuntimeError, TypeError, ValueError) as error:
        if is_out_of_memory(error):
            raise
        raise UsageError(
            f"cross-entropy, the default, does not take what the network returns and the target "
            f"({describe_failure(error)}); give --loss package.module:function(output, target)"
        ) from error


def open_source(
    network: Network,
    methods: Iterable[Method],
    options: ScoringOptions,
    *,
    batch: int = 1,
    seed: int = 0,
    batches: int | None = None,
    scores: Path | None = None,
) -> Source:
    """Open what a network is scored with, for methods that the scores must serve.

    `batches` counts if samples were not asked for; without either there are 8 samples. `scores` is
    a file of scores that exist already.
    """
    loaded = None if scores is None else Scores.load(scores)
    needs_data = loaded is None and any(method.needs_data for method in methods)
    data = options.data
    check_loss(options.loss, options.forward)
    if network.forward is not None:
        forward, judged_by = make_forward(None, network.forward), {"forward": options.forward}
    else:
        forward = make_forward(_load_loss(options.loss), None)
        judged_by = {"loss": options.loss or "cross-entropy"}
    scoring = Scoring(
        forward,
        per=options.per,
        weights=options.weights,
        seed=seed,
        source=judged_by if needs_data else {},
        scores=loaded,
    )
    if data is not None and names_loader(data):
        own = network.batches or open_loader(data)
        source = _from_loader(own, data, options.samples, batches, scoring)
        return source if needs_data else replace(source, about=_WEIGHTS_ALONE)
    if not needs_data:
        return Source(Batches(), scoring, _WEIGHTS_ALONE)
    check_directory(data)
    if network.spec is None:
        given = f", got the directory '{data}'" if data is not None else ""
        raise UsageError(
            f"give data to score '{network.name}' with: --data package.module:factory, "
            f"a function that returns a loader of (input, target) batches{given}"
        )
    samples = options.samples or (batches * batch if batches else DEFAULT_SAMPLES)
    if samples < batch:
        raise UsageError(
            f"--samples must be at least --batch, got {samples} and {batch}; "
            f"give --samples {batch} or more"
        )
    cases = _cases(network, data, samples, options.size, seed)
    # Generated samples come as they are: shuffled, the first ones would depend on how many are
    # asked for, and a resumed scoring with more of them would take some twice.
    loader = Loader(cases, batch, training=data is not None)
    number = min(len(loader), samples // batch)
    name = f"synthetic {network.spec.dataset}" if data is None else str(Path(data))
    shape = "x".join(map(str, volume(network, options.size)))
    made_of = {**scoring.source, "data": name, "batch": batch, "volume": shape}
    scoring = replace(scoring, batches=number, source=made_of)
    return Source(peek_blamed(loader), scoring, f"{number * batch} samples of {name}")


def _load_loss(name: str | None) -> Any:
    function = load_object(name, "loss") if name else cross_entropy
    if not callable(function):
        raise UsageError(
            f"loss '{name}' must be a function(output, target), got {type(function).__name__}"
        )
    return function


def _from_loader(
    own: Batches, name: str, samples: int | None, batches: int | None, scoring: Scoring
) -> Source:
    """Return what the user's own loader yields, as far as samples were asked for."""
    size = batch_size(own.first)
    if samples is not None and samples < size:
        raise UsageError(
            f"--samples must be at least a batch of the loader, got {samples} and {size}; "
            f"give --samples {size} or more"
        )
    number = batches if batches and samples is None else (samples or DEFAULT_SAMPLES) // size or 1
    assert own.loader is not None
    length = loader_length(own.loader)
    shown = number if length is None else min(number, length)
    about = f"{shown} batch{'es' * (shown > 1)} of {size} from {name}"
    about = f"at most {about}" if length is None else about
    made_of = {"data": name, **scoring.source} if scoring.source else {}
    return Source(own, replace(scoring, batches=number, source=made_of), about, size)


def _cases(network: Network, data: str | None, samples: int, size: int | None, seed: int) -> Any:
    """Open the cases of a data set, or of a generated one."""
    assert network.spec is not None
    frames, *_, edge = volume(network, size)
    if data is not None:
        return open_cases(network.spec.dataset, Path(data), "train", size=edge, seed=seed)
    return synthetic_cases(
        network.spec.dataset,
        size=edge,
        samples=samples,
        seed=seed,
        frames=frames,
        classes=network.spec.classes,
    )


def volume(network: Network, size: int | None) -> tuple[int, int, int]:
    """Return depth (or frames), height and width of what a network of the paper is scored with."""
    assert network.spec is not None
    _, _, frames, *space = network.input_shape
    return find_dataset(network.spec.dataset).volume(size or space[-1], frames)


class ScoringListener(ScoringBar):
    """Shows scoring as a progress bar; a signal ends it, and only it, after the batch under way.

    Scores go to the file `keep` as soon as they are there; `on_interrupt` is called with the scores
    so far if a signal came.
    """

    def __init__(
        self,
        output: Output,
        *,
        keep: Path | None = None,
        on_interrupt: Callable[[Scores], None] = lambda scores: None,
    ) -> None:
        super().__init__(shown=not output.quiet)
        self._output, self._keep, self._on_interrupt = output, keep, on_interrupt
        self._stop = GracefulStop()

    def on_start(self, done: int, total: int | None) -> None:
        """Show the bar; from here on a signal waits for the end of a batch."""
        self._stack.enter_context(self._stop)
        super().on_start(done, total)

    def on_batch(self, scores: Scores) -> bool:
        """Advance the bar; stop if a signal came."""
        super().on_batch(scores)
        return self._stop.number != 0

    def on_scored(self, scores: Scores, verdict: str | None) -> None:
        """Keep the scores, say how stable the choice is, end the command if a signal came."""
        super().on_scored(scores, verdict)
        if self._stop.number:
            self._on_interrupt(scores)
            raise typer.Exit(128 + self._stop.number)
        if self._keep is not None:
            scores.save(self._keep)
        if verdict is not None:
            self._output.say(verdict)

    def on_trial(self, sparsity: float, figures: Mapping[str, float]) -> None:
        """Say what was measured."""
        took = describe("latency", figures["latency"])
        self._output.say(f"  Measured: {took} at sparsity {sparsity:.4f}.")


def keep_interrupted(
    context: typer.Context, out: Path | None, then: Callable[[Path], str], **scoring: Any
) -> Callable[[Scores], None]:
    """Return what a command does when its scoring is interrupted: keep it for `ranp score`.

    Scores go to the command's directory, else to a new file here. `then(file)` returns the command
    that goes on from it; `scoring` are options of `ranp score` that differ from the command's.
    """

    def keep(scores: Scores) -> None:
        here = (Path(f"interrupted-{number}.safetensors") for number in count(1))
        new = next(path for path in here if not path.exists())
        kept = new if out is None else out / "scores.safetensors"
        scores.save(kept)
        options = {"out": kept, "resume": True, "per": scores.settings["per"], **scoring}
        resume = next_command(context, "score", context.params["network"], **options)
        typer.echo(
            f"Interrupted; {scores.batches} scored batches are in {kept}.\n"
            f"Score the rest: {resume}\n"
            f"Continue with what was scored: {then(kept)}",
            err=True,
        )

    return keep


def fit_without(network: Network) -> set[str]:
    """Return the options that a `ranp fit` with scores does not need again.

    A loader and a loss of the user's own stay: they tell the input, and what a step takes.
    """
    own = set() if network.spec is not None else {"data", "loss"}
    return search_without(network) - own


def search_without(network: Network) -> set[str]:
    """Return the options that a `ranp search` with scores does not need again.

    A forward of the user's own stays, and its batches: the network is traced with them.
    """
    return set(SCORING) - (set() if network.forward is None else {"data", "forward"})
