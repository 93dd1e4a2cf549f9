"""How long a network takes in PyTorch, and in what runs its file."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import torch
from torch import nn

from ranp.exporting.arguments import Arguments
from ranp.exporting.exporting import Exported
from ranp.exporting.formats import FORMATS, load_exported
from ranp.graph import ExampleInput, unwrap
from ranp.graph.surgery import training_mode
from ranp.resources.measuring import Timing, time_in_turns

PYTORCH = "PyTorch"


def time_exported(
    model: nn.Module,
    exported: Exported,
    example_input: ExampleInput,
    *,
    repetitions: int = 7,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Timing]:
    """Time a network and its file in turns, with as many threads as PyTorch has.

    Args:
        model: Network; it is not changed.
        exported: What `export` returned for it.
        example_input: Input to run both with.
        repetitions: Timed runs of each, after one that warms up.
        clock: Returns the time in seconds.

    Returns:
        Timings by name: "PyTorch", and the runtime of the file.
    """
    model = unwrap(model)
    arguments = Arguments.of(model, example_input).with_random_values(0)
    run = load_exported(exported.path, exported.format)
    with training_mode(model, False), torch.inference_mode():
        actions: dict[str, Callable[[], object]] = {
            PYTORCH: partial(arguments.call, model),
            FORMATS[exported.format].runtime: partial(run, arguments),
        }
        return time_in_turns(actions, repetitions, clock)
