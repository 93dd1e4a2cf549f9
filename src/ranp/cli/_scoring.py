"""What a network is scored with on the command line: a synthetic or real data set, or your own."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn

import typer

from ranp.cli._common import Network, next_command, progress
from ranp.errors import UsageError
from ranp.user_code import BlamedLoader, blame, blamed, call_factory, load_object

if TYPE_CHECKING:
    from torch import Tensor

    from ranp.graph import ChannelGraph
    from ranp.pipeline import Batches, Events, Scoring
    from ranp.pruning import Method, Scores, StabilityStop

DataOption = Annotated[
    str | None,
    typer.Option(
        "--data",
        help="A data set's directory, or package.module:factory that returns a loader. "
        "Without it, synthetic data of the network's kind.",
    ),
]
LossOption = Annotated[
    str | None,
    typer.Option(
        "--loss", help="package.module:function(output, target); cross-entropy if not given."
    ),
]
SamplesOption = Annotated[
    int,
    typer.Option(
        min=1, help="Samples to score with, at the most; a loader of your own is taken whole."
    ),
]
BatchOption = Annotated[int, typer.Option(min=1, help="Samples per batch; the paper has 1.")]
PerOption = Annotated[
    Literal["batch", "sample"],
    typer.Option(help="Score whole batches, or their samples one by one, as the paper does."),
]
SizeOption = Annotated[
    int | None,
    typer.Option(min=1, help="Edge of the volumes to score with, if not the network's input."),
]
SeedOption = Annotated[int, typer.Option(min=0, max=2**32 - 1, help="For all random numbers.")]
WeightsOption = Annotated[
    Literal["fresh", "orthogonal", "given"],
    typer.Option(help="Weights to score with; the paper's are fresh."),
]

SCORING = ("data", "loss", "samples", "batch", "per", "size", "weights")
"""The parameters that say how a network is scored; who has scores needs none of them."""

IGNORED = 255


@dataclass(frozen=True)
class Source:
    """What to score with.

    Attributes:
        loader: Yields batches; None where weights alone are scored.
        loss: From output and target to a scalar.
        batches: How many batches there are, if known.
        about: One line for people.
        settings: What the batches are made of, but for how many there are: scores go on with
            batches of the same kind alone.
    """

    loader: Iterable[Any] | None
    loss: Any
    batches: int | None
    about: str
    settings: Mapping[str, Any]


def cross_entropy(output: Tensor, target: Tensor) -> Tensor:
    """Cross-entropy; voxels that hold nothing are ignored."""
    from torch.nn import functional

    return functional.cross_entropy(output, target, ignore_index=IGNORED)


def open_source(
    network: Network,
    method: Method,
    data: str | None,
    loss: str | None,
    samples: int,
    batch: int,
    size: int | None,
    seed: int,
) -> Source:
    """Finds what a network is scored with."""
    if not method.needs_data:
        return Source(None, cross_entropy, None, "its weights alone", {})
    function = load_object(loss, "loss") if loss else cross_entropy
    if not callable(function):
        raise UsageError(
            f"loss '{loss}' is a {type(function).__name__}; name a function(output, target)"
        )
    settings: dict[str, Any] = {"loss": loss or "cross-entropy"}
    if data is not None and ":" in data and not Path(data).exists():
        return Source(_own_loader(data), function, None, data, {"data": data, **settings})
    if network.spec is None:
        raise UsageError(
            f"say what '{network.name}' is scored with: --data package.module:factory, "
            "a function that returns a loader of (input, target) batches"
        )
    from ranp.datasets.loader import Loader

    if samples < batch:
        raise UsageError(
            f"{samples} samples do not fill a batch of {batch}: give --samples {batch} or more"
        )
    cases = _cases(network, data, samples, size, seed)
    # Generated samples come as they are: shuffled, the first ones would depend on how many are
    # asked for, and a resumed scoring with more of them would take some twice.
    loader = Loader(cases, batch, training=data is not None)
    batches = min(len(loader), samples // batch)
    name = f"synthetic {network.spec.dataset}" if data is None else str(Path(data))
    settings |= {"data": name, "batch": batch, "volume": "x".join(map(str, _volume(network, size)))}
    return Source(loader, function, batches, f"{batches * batch} samples of {name}", settings)


def _own_loader(data: str) -> Any:
    """The user's own loader."""
    loader = call_factory(data, "data")
    if not hasattr(loader, "__iter__") and not hasattr(loader, "__getitem__"):
        raise UsageError(
            f"data '{data}' returns a {type(loader).__name__}, not a loader: something that "
            "yields (input, target) batches"
        )
    return loader


class Interruption:
    """Lets a signal end the scoring after the batch under way, so that nothing is lost."""

    def __init__(self) -> None:
        self.number = 0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interruption:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: object) -> None:
        if self.number == number:  # a second time: at once
            raise KeyboardInterrupt
        self.number = number

    @property
    def exit_code(self) -> int:
        """130 for SIGINT, 143 for SIGTERM."""
        return 128 + self.number


def stop_interrupted(
    context: typer.Context,
    interruption: Interruption,
    scores: Scores,
    out: Path | None,
    then: Callable[[Path], str],
    **scoring: Any,
) -> NoReturn:
    """Ends a command whose scoring was interrupted: what was scored is kept for `ranp score`.

    Args:
        context: Of the command.
        interruption: What ended the scoring.
        scores: As far as it got.
        out: The command's directory; without one, a new file in the current directory.
        then: From the file of scores to the command that goes on from there.
        scoring: Options of `ranp score` that differ from those of the command.
    """
    kept = _new_file() if out is None else out / "scores.safetensors"
    scores.save(kept)
    resume = next_command(
        context, "score", context.params["network"], out=kept, resume=True, **scoring
    )
    typer.echo(
        f"Interrupted; {scores.batches} scored batches are in {kept}.\n"
        f"Score the rest: {resume}\n"
        f"Go on with what there is: {then(kept)}",
        err=True,
    )
    raise typer.Exit(interruption.exit_code)


def _new_file() -> Path:
    """A file of scores that does not exist yet."""
    names = (f"interrupted-{number}.safetensors" for number in count(1))
    return next(path for path in map(Path, names) if not path.exists())


def make_scoring(source: Source, **options: Any) -> Scoring:
    """How a command scores: errors of the user's own loss are the user's."""
    from ranp.pipeline import Scoring
    from ranp.pruning import make_forward

    forward = blamed(make_forward(source.loss, None), "the forward pass or the loss")
    return Scoring(forward, source.batches, source=source.settings, **options)


def peek_at(source: Source) -> Batches:
    """What a command scores with, peeked at; errors of the user's loader are the user's."""
    from ranp.pipeline import peek

    with blame("the loader, asked for batch 1,"):
        batches = peek(source.loader)
    loader = None if batches.loader is None else BlamedLoader(batches.loader)
    return replace(batches, loader=loader)


@contextmanager
def listening(
    source: Source | None,
    quiet: bool,
    scored: Callable[[Scores, str | None, Interruption], None] = lambda *args: None,
    on_trial: Callable[[float, Mapping[str, float]], None] = lambda *args: None,
    *,
    done: int = 0,
) -> Iterator[Events]:
    """Listens for a command: a progress bar while scoring; a signal stops it after a batch.

    Args:
        source: What is scored with.
        quiet: No bar.
        scored: Called when scoring has ended, with what interrupted it.
        on_trial: See `ranp.pipeline.Events`.
        done: Batches that were scored before.
    """
    from ranp.pipeline import Events

    with ExitStack() as stack:
        interruption = stack.enter_context(Interruption())
        total = None if source is None else source.batches
        step = stack.enter_context(progress(quiet or source is None, "scoring", total, done))

        class Listener(Events):
            def on_batch(self, scores: Scores) -> bool:
                step()
                return bool(interruption.number)

            def on_scored(self, scores: Scores, verdict: str | None) -> None:
                stack.close()
                scored(scores, verdict, interruption)

            def on_trial(self, sparsity: float, figures: Mapping[str, float]) -> None:
                on_trial(sparsity, figures)

        if source is None:
            stack.close()
        yield Listener()


def run_scoring(
    network: Network,
    graph: ChannelGraph,
    source: Source,
    methods: Iterable[str],
    *,
    quiet: bool,
    resume: Scores | None = None,
    stop: StabilityStop | None = None,
    **options: Any,
) -> tuple[Scores, Interruption]:
    """Scores a network with a progress bar; a signal stops it after the batch under way."""
    from ranp.pipeline import Batches, Traced, score
    from ranp.pruning import find_method

    found: list[Interruption] = []
    loader = None if source.loader is None else BlamedLoader(source.loader)
    traced = Traced(network.model, graph, Batches(loader))
    rows = [find_method(name) for name in methods]
    scoring = make_scoring(source, resume=resume, **options)
    done = resume.batches if resume else 0
    with listening(source, quiet, lambda *args: found.append(args[2]), done=done) as events:
        scores = score(traced, rows, scoring, events, stop)
    return scores, found[0]


def _cases(network: Network, data: str | None, samples: int, size: int | None, seed: int) -> Any:
    from ranp.datasets import open_cases, synthetic_cases

    assert network.spec is not None
    frames, *_, edge = _volume(network, size)
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


def _volume(network: Network, size: int | None) -> tuple[int, int, int]:
    """What a network of the paper is scored with: frames or depth, height, width."""
    from ranp.datasets import find_dataset

    assert network.spec is not None
    _, _, frames, *space = network.input_shape
    return find_dataset(network.spec.dataset).volume(size or space[-1], frames)
