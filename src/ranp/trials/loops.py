"""One's own training loop as cells of a store: any network, any data, any framework on top.

A training function takes a network and a seed, trains it, and yields a metric at every check-in:

    def train(model, seed):
        for epoch in range(20):
            ...
            yield {"dice": 0.81, "loss": 0.4}      # or a single number; higher is better

A trained network is identified by four things: the full network, the name of the training
function, the number of neurons of every layer and the seed (see `Loop.cell`). How these numbers
were chosen is not part of it. A slim network that is initialised afresh takes over nothing else, so
two methods that allocate alike share a run, and stored runs outlive any change to a method.
"""

from __future__ import annotations

import inspect
import logging
import math
import random
import re
import time
from collections.abc import (
    Callable,
    Collection,
    Generator,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ranp.errors import UsageError, first_of
from ranp.files import ensure_directory, hold_directory
from ranp.graph import Alive, ChannelGraph
from ranp.pruning.scores import fingerprint
from ranp.slimming import slim_model
from ranp.trials.store import Cell, Store
from ranp.user_code import blame

Build = Callable[[], nn.Module]
Train = Callable[[nn.Module, int], Iterable[Any]]
Line = dict[str, float]
"""Values that a training yielded at a check-in, by name; the first that is not the loss counts."""

LOSS = "loss"
_SINGLE = "metric"
_POLL_SECONDS = 0.5
_END = object()

logger = logging.getLogger("ranp")


def check_loop(train: Train, length: int | None, build: Build | None = None) -> None:
    """Refuse what is no training function, no number of check-ins, or no factory of networks."""
    if not callable(train):
        raise UsageError(f"train must be a function train(model, seed), got {type(train).__name__}")
    with suppress(ValueError):  # a few built-in functions have no signature
        signature = inspect.signature(train, follow_wrapped=False)
        try:
            signature.bind(None, 0)
        except TypeError as error:
            name = training_name(train).partition(":")[2]
            raise UsageError(
                f"train must take a model and a seed, got {name}({', '.join(signature.parameters)})"
                "; let it be train(model, seed), and set other arguments by functools.partial"
            ) from error
    is_whole = isinstance(length, int) and not isinstance(length, bool)
    if length is not None and not (is_whole and length > 0):
        raise UsageError(
            f"length must be how many check-ins a whole training has, such as 200, got {length!r}"
        )
    if build is not None and (isinstance(build, nn.Module) or not callable(build)):
        raise UsageError(
            "build must be a function that returns the full network, got "
            f"{type(build).__name__}; give its class, or lambda: MyNet(...)"
        )


def training_name(train: Callable[..., object]) -> str:
    """Return what a training is called in cells: where it is defined, and a partial's arguments.

    The same in every process: addresses are left out. Of a decorated function, what is inside.
    """
    train = inspect.unwrap(train)
    if isinstance(train, partial):
        given = [*map(repr, train.args), *(f"{k}={v!r}" for k, v in train.keywords.items())]
        return re.sub(" at 0x[0-9a-f]+", "", f"{training_name(train.func)}({', '.join(given)})")
    return f"{train.__module__}:{getattr(train, '__qualname__', type(train).__name__)}"


class Training:
    """A training under way, which can be stopped at a check-in and go on later.

    Each has random numbers of its own: trainings that take turns in a process come out as if each
    had the process to itself.

    Attributes:
        curve: What was yielded so far.
        cpu_seconds: CPU time that it took so far.
        ended: Whether the training function has returned, or training has diverged.
        diverged: Why the training was ended, if a value was not finite.
    """

    def __init__(self, train: Train, model: Callable[[], nn.Module], seed: int) -> None:
        self.curve: list[Line] = []
        self.cpu_seconds = 0.0
        self.ended = False
        self.diverged: str | None = None
        self._random: dict[str, Any] | None = None
        self._lines = self._run(train, model, seed)

    @staticmethod
    def _run(train: Train, model: Callable[[], nn.Module], seed: int) -> Generator[Any]:
        seed_everything(seed)
        lines = train(model(), seed)
        if not isinstance(lines, Iterable) or isinstance(lines, Mapping | str):
            raise UsageError(
                "the training function must yield a metric at every check-in, "
                f"got {type(lines).__name__}; write `yield metric` in its loop, or use "
                "ranp.reporting for a trainer that owns it"
            )
        yield from lines

    def advance(self, check_ins: int | None) -> None:
        """Train up to a number of check-ins, or to the end."""
        began = time.process_time()
        with self._own_random_numbers():
            while not self.ended and (check_ins is None or len(self.curve) < check_ins):
                with blame("the training function"):
                    line = next(self._lines, _END)
                self.ended = line is _END
                if not self.ended:
                    self._append(_checked(line))
        self.cpu_seconds += time.process_time() - began

    def close(self) -> None:
        """End it where it is; what the training function opened is closed.

        It is not needed any further: that it cannot be closed is only warned of.
        """
        self.ended = True
        try:
            with blame("the training function, closed at a check-in,"):
                self._lines.close()
        except UsageError as error:
            logger.warning("%s", error)

    def _append(self, line: Line) -> None:
        first = self.curve[0] if self.curve else line
        if (goal_of(line), LOSS in line) != (goal_of(first), LOSS in first):
            raise UsageError(
                "the training function must yield (or report) the same names at every check-in, "
                f"got {', '.join(line)} after {', '.join(first)}; yield all of them each time, in "
                "one order"
            )
        wrong = [name for name, value in line.items() if not math.isfinite(value)]
        if not wrong:
            self.curve.append(line)
            return
        self.diverged = f"{wrong[0]} is {line[wrong[0]]} at check-in {len(self.curve) + 1}"
        self.close()

    @contextmanager
    def _own_random_numbers(self) -> Iterator[None]:
        outer = random_state()
        if self._random is not None:
            set_random_state(self._random)
        try:
            yield
        finally:
            self._random = random_state()
            set_random_state(outer)


def seed_everything(seed: int) -> None:
    """Seed the random numbers of torch, NumPy and Python."""
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)


def random_state() -> dict[str, Any]:
    """Return the state of all random number generators, for `set_random_state`."""
    return {
        "python": random.getstate(),
        "numpy": np.random.get_state(),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }


def set_random_state(state: Mapping[str, Any]) -> None:
    """Set all random number generators to a state."""
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])
    torch.set_rng_state(state["torch"])
    if state["cuda"]:
        torch.cuda.set_rng_state_all(state["cuda"])


def _checked(line: Any) -> Line:
    """Return what was yielded as numbers by name; refuse anything else, and a loss alone."""
    named = line if isinstance(line, Mapping) else {_SINGLE: line}
    try:
        values = {str(name): _number(value) for name, value in named.items()}
    except (TypeError, ValueError) as error:
        raise UsageError(
            "the training function must yield (or report) a number, or numbers by name, "
            f"got {line!r}; write `yield dice` or `yield {{'dice': dice, 'loss': loss}}`"
        ) from error
    if all(name == LOSS for name in values):
        raise UsageError(
            "the training function must yield (or report) a metric besides the loss, higher is "
            "better; write `yield {'dice': dice, 'loss': loss}`"
        )
    if LOSS in goal_of(values).lower():
        raise UsageError(
            "the training function must yield (or report) a metric first, of which higher is "
            f"better, got '{goal_of(values)}'; write `yield {{'dice': dice, 'loss': loss}}`, other "
            "values last"
        )
    return values


def _number(value: Any) -> float:
    """Return a value as a number; PyTorch warns of a tensor that requires a gradient."""
    return float(value.detach() if isinstance(value, Tensor) else value)


def goal_of(line: Mapping[str, float]) -> str:
    """Return the name of the metric that counts: the first that is not the loss."""
    return next(name for name in line if name != LOSS)


class Loop:
    """The user's network and training function, and the cells that they make.

    The name is what the training is called in cells; cells of another name are other cells.
    """

    def __init__(
        self, store: Store, model: nn.Module, graph: ChannelGraph, train: Train, *, name: str
    ) -> None:
        self.store, self.model, self.graph = store, model, graph
        self.train, self.name = train, name
        self._alive: dict[str, Alive] = {}
        self._running: dict[str, Training] = {}
        self._held: dict[Path, ExitStack] = {}
        self._warned: set[str] = set()

    def __getstate__(self) -> dict[str, Any]:
        """Return what another process needs; trainings under way stay here."""
        return {**vars(self), "_running": {}, "_held": {}}

    def cell(self, alive: Alive, seed: int, check_ins: int | None = None) -> Cell:
        """Return the cell of a slim network's training.

        What is hashed: the full network by the shapes of its parameters, the training by its name,
        the number of living inputs and neurons of every layer, the seed, and after how many
        check-ins it is stopped (None: never). Nothing else: not the method, not the budget.
        """
        widths = {
            name: [int(alive[layer.inputs].sum()), int(alive[layer.neurons].sum())]
            for name, layer in self.graph.layers.items()
        }
        cell = {
            "kind": "loop",
            "network": fingerprint(self.graph),
            "train": self.name,
            "widths": widths,
            "seed": seed,
            "check_ins": check_ins,
        }
        self._alive[_key(cell)] = alive
        return cell

    def __call__(self, cell: Cell, place: Path) -> dict[str, Any]:
        """Train the network of a cell; is the `Compute` of the store.

        Returns:
            The curve, and the goal's last value as `accuracy`. `outcome` is "trained", or
            "diverged" where a value is not finite.
        """
        key = _key(cell)
        alive, seed = self._alive[key], cell["seed"]
        running = self._running.get(key)
        if running is None or len(running.curve) > (cell["check_ins"] or math.inf):
            running = Training(
                self.train,
                lambda: slim_model(self.model, self.graph, alive, init="fresh", seed=seed),
                seed,
            )
        self._running[key] = running
        began = time.time()
        running.advance(cell["check_ins"])
        if cell["check_ins"] is None or running.ended:
            del self._running[key]
        result = {
            "outcome": "trained" if running.diverged is None else "diverged",
            "curve": running.curve,
            "seconds": time.time() - began,
            "cpu_seconds": running.cpu_seconds,
            "device": "cuda" if torch.cuda.is_available() else "cpu",
        }
        if running.diverged is not None:
            return {**result, "reason": running.diverged}
        if not running.curve:
            raise UsageError(
                "the training function must yield (or report) at least once, got nothing"
            )
        goal = goal_of(running.curve[-1])
        return {**result, "goal": goal, "accuracy": running.curve[-1][goal]}

    def run(
        self, trainings: Sequence[tuple[Alive, int]], check_ins: int, race: str = ""
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield the results of the first check-ins of some trainings, as they come.

        Processes of one race share the trainings out. Each goes on with those that it has begun,
        for it alone can do so without beginning again; it begins what no other has begun, and waits
        for the rest. (All of them ask for the same in the same order, so none waits for ever. That
        does not hold for other races, which may train the same once more.)

        Args:
            trainings: Living channels of slim networks, and the seeds that they are trained with.
            check_ins: How far they are trained; a result is read off a whole run if there is one.
            race: What the race is called, the same in all of its processes and no other race.

        Yields:
            The number of a training, and its result.
        """
        left = dict(enumerate(trainings))
        while left:
            for number in sorted(left, key=lambda number: not self._has_begun(*left[number])):
                found = self._first_check_ins(*left[number], check_ins, race)
                if found is not None:
                    del left[number]
                    yield number, found
                    break
            else:
                time.sleep(_POLL_SECONDS)

    def _has_begun(self, alive: Alive, seed: int) -> bool:
        return _key(self.cell(alive, seed)) in self._running

    def _first_check_ins(
        self, alive: Alive, seed: int, check_ins: int, race: str
    ) -> dict[str, Any] | None:
        """Return the result of the first check-ins of a training; None if another process has it.

        A process has a training from its beginning until the loop is closed: it holds a directory
        of the training in this race.
        """
        cell = whole = self.cell(alive, seed)
        if self.store.missing([whole]):
            cell = self.cell(alive, seed, check_ins)
            if self.store.missing([cell]) and self._hold({**whole, "race": race}):
                self.store.complete([cell], self)
        if self.store.missing([cell]):
            return None
        result = self.store.result(cell)
        assert result is not None
        found = _cut(result, check_ins)
        if self.store.is_outdated(cell):
            self._warn(
                "trainings in '%s' were computed by another version of the code; to train them "
                "again, remove it or give the training another name",
                self.store.directory,
            )
        if found["outcome"] == "trained" and len(found["curve"]) < check_ins:
            self._warn(
                "the training function ended at check-in %d, but the race goes to %d; give as "
                "length how often it yields, and let no training stop early",
                len(found["curve"]),
                check_ins,
            )
        return found

    def _hold(self, training: Cell) -> bool:
        """Hold the directory of a training; return whether no other process does."""
        directory = ensure_directory(self.store.place(training))
        if directory not in self._held:
            with ExitStack() as stack:
                if stack.enter_context(hold_directory(directory)) is not None:
                    return False
                self._held[directory] = stack.pop_all()
        return True

    def _warn(self, message: str, *values: object) -> None:
        """Warn of something once, however many trainings it holds for."""
        if message not in self._warned:
            self._warned.add(message)
            logger.warning(message, *values)

    def close(self) -> None:
        """End trainings that were stopped at a check-in: they hold networks and open files."""
        while self._running:
            self._running.popitem()[1].close()
        while self._held:
            self._held.popitem()[1].close()


def _cut(result: Mapping[str, Any], check_ins: int) -> dict[str, Any]:
    """Return the result that a training had when it came to a check-in."""
    curve = result["curve"][:check_ins]
    if len(curve) < check_ins:
        return dict(result)
    share = check_ins / len(result["curve"])
    seconds = {name: share * result[name] for name in ("seconds", "cpu_seconds")}
    rest = {name: value for name, value in result.items() if name != "reason"}
    return {**rest, **seconds, "outcome": "trained", "curve": curve}


def refuse_all_diverged(runs: Collection[Mapping[str, Any]]) -> None:
    """Refuse trainings of which not one gave finite numbers: there is nothing to choose by."""
    reasons = {run["reason"]: None for run in runs if run["outcome"] == "diverged"}
    if reasons and all(run["outcome"] == "diverged" for run in runs):
        raise UsageError(
            f"every training diverged ({first_of(list(reasons), 1)}); train the full network with "
            "this loop first, or with a smaller learning rate"
        )


def _key(cell: Cell) -> str:
    """What is the same for all lengths of a training."""
    return repr({name: value for name, value in cell.items() if name != "check_ins"})
