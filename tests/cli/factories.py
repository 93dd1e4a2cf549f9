"""Networks, loaders and losses that tests name on the command line."""

from __future__ import annotations

import os
import signal
import warnings
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F

NOT_A_FUNCTION = 3


def small() -> nn.Module:
    return nn.Sequential(
        nn.Conv3d(1, 6, 3, padding=1), nn.ReLU(), nn.Conv3d(6, 8, 3, padding=1), nn.ReLU(),
        nn.Conv3d(8, 2, 1),
    )  # fmt: skip


def ten_neurons() -> nn.Module:
    return nn.Sequential(
        nn.Conv3d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv3d(4, 4, 3, padding=1), nn.ReLU(),
        nn.Conv3d(4, 2, 1),
    )  # fmt: skip


def deep_names() -> nn.Module:
    """Layers are called stages.decoder_of_the_network.conv.0 and so on; heads are tied."""
    net, stages = nn.Sequential(), nn.Sequential()
    stages.add_module("decoder_of_the_network", small())
    net.add_module("stages", stages)
    return net


def batches() -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    return [
        (
            torch.randn(1, 1, 8, 8, 8, generator=generator),
            torch.randint(0, 2, (1, 8, 8, 8), generator=generator),
        )
        for _ in range(4)
    ]


def other_batches() -> list[tuple[Tensor, Tensor]]:
    return [(2 * x, y) for x, y in batches()]


def signalled_batches() -> Iterator[tuple[Tensor, Tensor]]:
    """The batches; the process gets the signal that TEST_SIGNAL names in the second one."""
    for number, batch in enumerate(batches()):
        if number == 1 and "TEST_SIGNAL" in os.environ:
            os.kill(os.getpid(), getattr(signal, os.environ["TEST_SIGNAL"]))
        yield batch


def one_batch() -> list[tuple[Tensor, Tensor]]:
    inputs, targets = zip(*batches(), strict=True)
    return [(torch.cat(inputs), torch.cat(targets))]


def pairs_of_two() -> list[tuple[Tensor, Tensor]]:
    (a, b), (c, d), *_ = batches()
    return [(torch.cat([a, c]), torch.cat([b, d]))] * 2


def labels_with_a_channel() -> list[tuple[Tensor, Tensor]]:
    """As MONAI has them."""
    return [(x, y[:, None]) for x, y in batches()]


def many_batches() -> list[tuple[Tensor, Tensor]]:
    return batches() * 8


def no_batches() -> list[tuple[Tensor, Tensor]]:
    return []


def poisoned_batches() -> list[tuple[Tensor, Tensor]]:
    good = batches()
    good[2][0][0, 0, 0, 0, 0] = float("nan")
    return good


def broken_loader() -> Iterator[tuple[Tensor, Tensor]]:
    yield batches()[0]
    raise OSError("disk on fire")


def float_targets() -> list[tuple[Tensor, Tensor]]:
    return [(x, y.half()) for x, y in batches()]


def pooled() -> nn.Module:
    return nn.Sequential(
        nn.Conv3d(1, 6, 3), nn.AdaptiveAvgPool3d(1), nn.BatchNorm3d(6), nn.Conv3d(6, 2, 1)
    )


def unreduced(output: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(output, target, reduction="none")


def half_loss(output: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(output, target) / 2


def deciding_loss(output: Tensor, target: Tensor) -> Tensor:
    return output.mean() if output.mean() > 0 else output.sum()


def raises() -> nn.Module:
    raise RuntimeError("no such luck")


def warns() -> nn.Module:
    warnings.warn_explicit("careful", UserWarning, "/site-packages/other.py", 7)
    return small()


def number() -> int:
    return 3


def wide() -> nn.Module:
    return nn.Sequential(
        nn.Conv3d(1, 24, 3, padding=1), nn.ReLU(), nn.MaxPool3d(2), nn.Conv3d(24, 48, 3, padding=1),
        nn.ReLU(), nn.Upsample(scale_factor=2), nn.Conv3d(48, 2, 1),
    )  # fmt: skip


class TwoInputs(nn.Module):
    """An encoder for each of two inputs, the second by name, and outputs at two depths."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv3d(1, 12, 3, padding=1)
        self.second = nn.Conv3d(2, 12, 3, padding=1)
        self.head = nn.Conv3d(24, 2, 1)
        self.deep = nn.Conv3d(12, 2, 1)

    def forward(self, ct: Tensor, pet: Tensor) -> tuple[Tensor, Tensor]:
        first, second = self.first(ct).relu(), self.second(pet).relu()
        return self.head(torch.cat([first, second], 1)), self.deep(first)


def named_batches() -> list[dict[str, object]]:
    return [{"case": ["a"], "ct": x, "pet": torch.cat([x, -x], 1), "mask": y} for x, y in batches()]


def signalled_named_batches() -> Iterator[dict[str, Tensor]]:
    """The same with two samples each; the second comes with the signal in TEST_SIGNAL."""
    for number, batch in enumerate(named_batches()):
        if number == 1 and "TEST_SIGNAL" in os.environ:
            os.kill(os.getpid(), getattr(signal, os.environ["TEST_SIGNAL"]))
        yield {k: torch.cat([v, v]) for k, v in batch.items() if isinstance(v, Tensor)}


def aged_batches() -> list[dict[str, object]]:
    """The same, and what belongs to a sample as a whole comes first."""
    return [{"age": torch.rand(1, 1), **batch} for batch in named_batches()]


def forward(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """The loss of two inputs and two outputs."""
    output, deep = model(batch["ct"], pet=batch["pet"])
    return F.cross_entropy(output, batch["mask"]) + F.cross_entropy(deep, batch["mask"]) / 2


def forward_of_a_part(model: TwoInputs, batch: dict[str, Tensor]) -> Tensor:
    return F.cross_entropy(model.deep(model.first(batch["ct"])), batch["mask"])


def train_two_inputs(model: nn.Module, seed: int) -> Iterator[dict[str, float]]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in named_batches() * 2:
        loss = forward(model, batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield {"likelihood": -loss.item(), "loss": loss.item()}


class Interrupting(nn.Module):
    """The process is interrupted when it is run, or traced."""

    def __init__(self) -> None:
        super().__init__()
        self.body = small()

    def forward(self, x: Tensor) -> Tensor:
        os.kill(os.getpid(), signal.SIGINT)
        y: Tensor = self.body(x)
        return y


def train(model: nn.Module, seed: int) -> Iterator[dict[str, float]]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in batches() * 2:
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield {"agreement": float((model(x).argmax(1) == y).float().mean()), "loss": loss.item()}


def train_badly(model: nn.Module, seed: int) -> Iterator[float]:
    yield 0.5
    raise ValueError("the disk is full")


def train_signalled(model: nn.Module, seed: int) -> Iterator[float]:
    """Yields; the process gets the signal that TEST_SIGNAL names after the second check-in."""
    for number in range(20):
        if number == 2 and "TEST_SIGNAL" in os.environ:
            try:
                os.kill(os.getpid(), getattr(signal, os.environ["TEST_SIGNAL"]))
            except Exception:  # as users' code has it around a step
                print("caught")
        yield number / 20


def train_diverging(model: nn.Module, seed: int) -> Iterator[float]:
    yield float("nan")
