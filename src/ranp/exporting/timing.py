"""How long a network takes in PyTorch, and in what runs its file."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from ranp.exporting.arguments import Arguments
from ranp.exporting.exporting import Exported
from ranp.exporting.formats import FORMATS, load_exported
from ranp.graph import ExampleInput, unwrap
from ranp.graph.surgery import training_mode
from ranp.resources.machine import describe_machine, load
from ranp.resources.measuring import time_in_turns

PYTORCH = "PyTorch"


def time_exported(
    model: nn.Module,
    exported: Exported,
    example_input: ExampleInput,
    *,
    repetitions: int = 7,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Any]:
    """Time a network and its file in turns, with as many threads as PyTorch has.

    Args:
        model: Network; it is not changed.
        exported: What `export` returned for it.
        example_input: Input to run both with.
        repetitions: Timed runs of each, after one that warms up.
        clock: Returns the time in seconds.

    Returns:
        Plain values: `shape` of the first input, `machine`, `load`, and `runs` by name ("PyTorch",
        and the runtime of the file) with `seconds` (the median), `spread` and all `times`.
    """
    model = unwrap(model)
    arguments = Arguments.of(model, example_input).with_random_values(0)
    run = load_exported(exported.path, exported.format)
    with training_mode(model, False), torch.inference_mode():
        actions: dict[str, Callable[[], object]] = {
            PYTORCH: partial(arguments.call, model),
            FORMATS[exported.format].runtime: partial(run, arguments),
        }
        timings = time_in_turns(actions, repetitions, clock)
    return {
        "shape": list(arguments.tensors[0].shape),
        "machine": describe_machine(torch.device("cpu")),
        "load": load(),
        "runs": {
            name: {"seconds": timing.median, "spread": timing.spread, "times": list(timing.seconds)}
            for name, timing in timings.items()
        },
    }
