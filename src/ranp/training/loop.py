"""The training loop; network, task, data and listeners are passed in.

All randomness follows from (seed, epoch, batch, process): the loader draws its order and crops
that way, and torch's generator is seeded before each step. So a run that was stopped at any
step goes on as if it had not been, and on a CPU ends with the same bits.
"""

from __future__ import annotations

import math
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from ranp.datasets.loader import Loader
from ranp.datasets.tasks import Batch, Measures, Task
from ranp.errors import IntegrityError, RanpError, UsageError
from ranp.recompute import checkpointed
from ranp.schemas import AVERAGED_EPOCHS
from ranp.signals import GracefulStop, Interrupted
from ranp.slimming import save_weights
from ranp.speed import optimize, return_freed_memory
from ranp.training.checkpoint import Progress, load_checkpoint, save_checkpoint
from ranp.training.config import LoopConfig
from ranp.training.distributed import all_reduce_sum, broadcast_buffers, gather_interleaved
from ranp.training.listeners import Listener, Step
from ranp.training.optim import learning_rate, make_optimizer
from ranp.user_code import blame

if TYPE_CHECKING:
    from lightning_fabric import Fabric

LAST, BEST = "last.safetensors", "best.safetensors"


class Diverged(RanpError):
    """The loss became NaN or infinite."""


class Trainer:
    """Trains a network in a run directory, from the start or from the last checkpoint.

    Example:
        >>> Trainer(fabric, model, task, config, train, validation, out).fit()  # doctest: +SKIP
    """

    def __init__(
        self,
        fabric: Fabric,
        model: nn.Module,
        task: Task,
        config: LoopConfig,
        train: Loader,
        validation: Loader,
        directory: Path | None,
        listeners: Sequence[Listener] = (),
    ) -> None:
        """Set up training; a checkpoint in the directory is loaded.

        Args:
            fabric: Launched Fabric: device, precision and processes.
            model: The network with its first weights. It is the one that is trained, unless
                `config.optimize` puts a faster copy in its place: `Trainer.model`.
            task: Loss and metrics.
            config: Settings of the loop.
            train: Training batches of this process.
            validation: Validation batches of this process.
            directory: Directory of the checkpoints; None to write none.
            listeners: Listeners to the run, called in their order.
        """
        self.fabric, self.task, self.config = fabric, task, config
        self.train, self.validation = train, validation
        self.directory, self.listeners = directory, listeners
        if config.optimize or config.channels_last:
            # DDP compares strides of dimensions of size 1, which mean nothing.
            warnings.filterwarnings("ignore", "Grad strides do not match bucket view strides")
        if config.optimize:
            if fabric.device.type != "cpu":
                raise UsageError(
                    "optimize finds faster ways on a CPU, and this run trains on "
                    f"{fabric.device.type}: leave it out; channels_last and compile are for other "
                    "devices"
                )
            shape = (train.batch, *train.cases[0]["x"].shape)
            model = optimize(model, shape, "train", keep_memory=True)
        elif config.channels_last:
            model = model.to(memory_format=torch.channels_last_3d)  # type: ignore[call-overload]
        self.model = model
        optimizer = make_optimizer(config.optimizer, model.parameters())
        compiled: Any = torch.compile(model) if config.compile else model
        self.network, self.optimizer = fabric.setup(compiled, optimizer)
        self.progress = Progress()
        if directory is not None and (directory / LAST).exists():
            self.progress, scaler = load_checkpoint(directory / LAST, model, optimizer)
            fabric.strategy.precision.load_state_dict(scaler)
        self._stop = GracefulStop()
        self._saved = time.monotonic()

    def fit(self) -> Progress:
        """Train until the last epoch is over.

        Raises:
            Interrupted: A signal came; a checkpoint was written first.
            Diverged: The loss became NaN or infinite; the batch is named.
        """
        with self._stop:
            for _ in self.epochs():
                pass
        return self.progress

    def epochs(self) -> Iterator[dict[str, Any]]:
        """Train epoch by epoch; yield the line of each when it is over.

        Raises:
            Diverged: The loss became NaN or infinite; the batch is named.
        """
        progress = self.progress
        with self._running():
            while progress.epoch <= self.config.epochs:
                for _ in self._train_epoch():
                    pass
                is_averaged = progress.epoch > self.config.epochs - AVERAGED_EPOCHS
                validates = is_averaged or progress.epoch % self.config.validate_every == 0
                yield self._finish_epoch(self._validate() if validates else None)

    def check_ins(self, steps: int) -> Iterator[dict[str, float]]:
        """Train to the end; yield the goal and the mean loss after every `steps` steps.

        On the way as many validation batches are measured as steps were trained, spread over all;
        at the end all of them.

        Raises:
            Diverged: The loss became NaN or infinite; the batch is named.
        """
        goal, losses = self.task.goal, deque[float](maxlen=steps)
        done, total = 0, self.config.epochs * self.steps_per_epoch
        with self._running():
            while self.progress.epoch <= self.config.epochs:
                for loss in self._train_epoch():
                    losses.append(loss)
                    done += 1
                    if done % steps == 0 and done < total:
                        measured = self._validate(every=math.ceil(len(self.validation) / steps))
                        yield {goal: measured[goal], "loss": fmean(losses)}
                        self.network.train()
                self._finish_epoch(None)
            yield {goal: self._validate()[goal], "loss": fmean(losses)}

    @property
    def steps_per_epoch(self) -> int:
        """Steps of the optimizer in an epoch."""
        return math.ceil(len(self.train) / self.config.accumulate)

    @contextmanager
    def _running(self) -> Iterator[None]:
        """Tell the listeners where training starts, with what the settings ask for switched on."""
        progress = self.progress
        for listener in self.listeners:
            listener.on_start(progress.epoch, progress.batch, progress.history)
        recompute = checkpointed(self.model) if self.config.recompute else nullcontext()
        with recompute, ExitStack() as stack:
            if self.config.optimize:
                stack.callback(return_freed_memory)
            yield

    def _train_epoch(self) -> Iterator[float]:
        """Train an epoch, or what is left of it; yield the loss of every step."""
        config, progress = self.config, self.progress
        rate = learning_rate(config.schedule, config.optimizer.lr, progress.epoch, config.epochs)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.network.train()
        total = len(self.train)
        if progress.batch > total:
            raise IntegrityError(
                f"the checkpoint is {progress.batch} batches into an epoch that has {total}; "
                "restore the file or start again"
            )
        batches = self.train.epoch(progress.epoch, start=progress.batch)
        while micro_batches := list(islice(batches, config.accumulate)):
            began = time.perf_counter()
            loss, stopped = self._step(micro_batches)
            progress.loss += loss * len(micro_batches)
            progress.batch += len(micro_batches)
            progress.seconds += time.perf_counter() - began
            ids = tuple(case for batch in micro_batches for case in batch["id"])
            samples = len(ids) * self.fabric.world_size
            done = (progress.epoch, progress.batch, total)
            for listener in self.listeners:
                listener.on_step(Step(*done, loss, samples, progress.seconds, ids))
            if stopped:
                self._interrupt()
            if time.monotonic() - self._saved >= 60 * config.checkpoint_minutes:
                self._save()
            yield loss

    def _step(self, micro_batches: Sequence[Batch]) -> tuple[float, bool]:
        """One step of the optimizer: the loss, and whether some process was told to stop."""
        fabric, progress = self.fabric, self.progress
        _seed(self.config.seed, progress.epoch, progress.batch, fabric.global_rank)
        total = 0.0
        for position, on_host in enumerate(micro_batches):
            batch = self._on_device(on_host)
            waits = position + 1 < len(micro_batches)
            with fabric.no_backward_sync(self.network, enabled=waits):
                shape = "x".join(map(str, batch["x"].shape))
                with blame("the network", f"; it was given {shape}: try larger samples or batches"):
                    output = self.network(batch["x"])
                loss: Any = self.task.loss(output, batch)
                if not isinstance(loss, Tensor) or loss.dim() != 0:
                    got = tuple(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
                    raise UsageError(f"the task's loss must be a scalar tensor, got {got}")
                fabric.backward(loss / len(micro_batches))
            total += float(loss.detach())
        mean = total / len(micro_batches) / fabric.world_size
        mean, stop_signals = all_reduce_sum(fabric, [mean, float(self._stop.number)])
        if not math.isfinite(mean):
            cases = ", ".join(case for batch in micro_batches for case in batch["id"])
            raise Diverged(
                f"the loss is {mean} in epoch {progress.epoch}, batch {progress.batch + 1} "
                f"({cases}); lower optimizer.lr, set clip, or look at these cases"
            )
        if self.config.clip is not None:
            fabric.clip_gradients(
                self.network, self.optimizer, max_norm=self.config.clip, error_if_nonfinite=False
            )
        self.optimizer.step()
        self.optimizer.zero_grad()
        return mean, stop_signals > 0

    def _on_device(self, batch: Batch) -> dict[str, Any]:
        moved: dict[str, Any] = self.fabric.to_device(batch)
        if self.config.channels_last and not self.config.optimize and moved["x"].dim() == 5:
            moved["x"] = moved["x"].to(memory_format=torch.channels_last_3d)
        return moved

    def _validate(self, every: int = 1) -> dict[str, float]:
        """Return the metrics of the validation set, or of one in `every` of its batches."""
        began = time.perf_counter()
        broadcast_buffers(self.fabric, self.model)
        metrics = evaluate(
            self.fabric, self.model, self.task, self.validation, self._prepare_validation, every
        )
        self.progress.seconds += time.perf_counter() - began
        return metrics

    def _prepare_validation(self, batch: Batch) -> dict[str, Any]:
        """Stop before a batch if asked to; several processes wait for the next step, to agree."""
        if self._stop.number and self.fabric.world_size == 1:
            self._interrupt()
        return self._on_device(batch)

    def _finish_epoch(self, metrics: dict[str, float] | None) -> dict[str, Any]:
        progress = self.progress
        samples = progress.batch * self.train.batch * self.fabric.world_size
        before = progress.history[-1]["seconds"] if progress.history else 0.0
        line: dict[str, Any] = {
            "epoch": progress.epoch,
            "loss": progress.loss / max(progress.batch, 1),
            "lr": self.optimizer.param_groups[0]["lr"],
            "seconds": progress.seconds,
            "samples_per_second": samples / max(progress.seconds - before, 1e-9),
        }
        if metrics is not None:
            line["metrics"] = metrics
            value = metrics[self.task.goal]
            if progress.best is None or value > progress.best:
                progress.best, progress.best_epoch = value, progress.epoch
                if self.fabric.is_global_zero and self.directory is not None:
                    save_weights(self.model, self.directory / BEST)
        progress.history.append(line)
        progress.epoch, progress.batch, progress.loss = progress.epoch + 1, 0, 0.0
        self._save()
        for listener in self.listeners:
            listener.on_epoch_end(line)
        return line

    def _save(self) -> None:
        if self.fabric.is_global_zero and self.directory is not None:
            scaler = self.fabric.strategy.precision.state_dict()
            path = self.directory / LAST
            save_checkpoint(path, self.model, self.optimizer.optimizer, self.progress, scaler)
        self._saved = time.monotonic()

    def _interrupt(self) -> None:
        self._save()
        self.fabric.barrier()
        number = self._stop.number or 15
        raise Interrupted(
            number,
            f"stopped in epoch {self.progress.epoch} after batch {self.progress.batch}; "
            "to continue, run the same command with --resume auto",
        )


@torch.no_grad()
def evaluate(
    fabric: Fabric,
    model: nn.Module,
    task: Task,
    loader: Loader,
    on_device: Callable[[Batch], dict[str, Any]] | None = None,
    every: int = 1,
) -> dict[str, float]:
    """Return the metrics of a network, the same on one process or several; it is left in eval mode.

    `on_device` moves a batch to the network's device; one in `every` batches is measured.
    """
    model.eval()
    move: Callable[[Batch], dict[str, Any]] = on_device or fabric.to_device

    def network(x: Tensor) -> Tensor:
        with fabric.autocast():
            output: Tensor = model(x)
        return output

    def measures() -> Iterator[Measures]:
        for on_host in islice(loader.epoch(0), 0, None, every):
            batch = move(on_host)
            yield from task.measure(task.predict(network, batch["x"]), batch)

    return task.summarise(gather_interleaved(fabric, list(measures())))


def _seed(*position: int) -> None:
    """Seed torch (dropout and the like) by a position in the run."""
    state = np.random.SeedSequence(position).generate_state(1, np.uint64)
    torch.manual_seed(int(state[0]) >> 1)
