"""`make peers`: ranp and Torch-Pruning side by side, over the networks of the zoo and of MONAI.

Torch-Pruning is installed into a directory of its own, which nothing else sees. Each network is
slimmed by each library in a process of its own, in turns: about half of the channels at random.
The slim network must equal the full one whose removed channels are masked, by what the library
itself says is removed (eval mode, float64, the statistics of group and layer norm frozen to those
of the masked network). Torch-Pruning is told which layers give the output.

A second table has the time of a training step at the same FLOPs, for networks of some size.
"""

from __future__ import annotations

import contextlib
import copy
import json
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ranp.graph import build_graph
from ranp.slimming import slim_model
from tests.oracle import Reference, _Statistics, random_alive, randomize_
from tests.peer_steps import output_layers, print_steps
from tests.zoo.case import Case
from tests.zoo.monai_networks import NETWORKS
from tests.zoo.topologies import TOPOLOGIES

VERSION = "1.6.1"
TARGET = Path("build/peers")
SHARE = 0.5
EXACT = 1e-8
LAYERS = (nn.modules.conv._ConvNd, nn.Linear)


class Watch:
    """Adds up the CPU time of what runs inside, and keeps its peak memory."""

    def __init__(self) -> None:
        self.seconds, self.peak = 0.0, 0

    def __enter__(self) -> None:
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
        self._before, self._began = _memory("VmRSS"), time.process_time()

    def __exit__(self, *_: object) -> None:
        self.seconds += time.process_time() - self._began
        self.peak = max(self.peak, _memory("VmHWM") - self._before)


Slim = Callable[[Case, Watch], float]
"""Slims a network inside of a watch, and returns the error relative to the largest output."""


def by_ranp(case: Case, watch: Watch) -> float:
    """Slim a network with ranp."""
    model = randomize_(case.make())
    with watch:
        graph = build_graph(model, case.inputs())
        alive = random_alive(graph, SHARE)
        slim = slim_model(model, graph, alive, init="keep")
    inputs, both = case.inputs(), case.both_ends
    return Reference(model, graph, alive, inputs, both_ends=both).compare(slim).error


def by_torch_pruning(case: Case, watch: Watch) -> float:
    """Do the same with Torch-Pruning, which is told what layers give the output."""
    import torch_pruning

    model = randomize_(case.make()).eval()
    inputs = case.inputs()
    fixed = output_layers(model, build_graph(model, inputs))
    with watch:
        graph_of = torch_pruning.DependencyGraph()
        dependencies = graph_of.build_dependency(model, example_inputs=inputs)
    generator = torch.Generator().manual_seed(0)
    masked, names = _untied(model), {module: name for name, module in model.named_modules()}
    roots = []
    for group in dependencies.get_all_groups(ignored_layers=fixed, root_module_types=LAYERS):
        dependency, idxs = group[0]
        count = len(idxs) // 2
        if count == 0:
            continue
        chosen = sorted(torch.randperm(len(idxs), generator=generator)[:count].tolist())
        root, function = dependency.target.module, dependency.handler
        roots.append((root, function, chosen))
        for each, removed in dependencies.get_pruning_group(root, function, chosen):
            _mask(masked, names.get(each.target.module), each, removed, case.both_ends)
    if not roots:
        raise ValueError("nothing can be removed")
    with torch.no_grad(), _Statistics() as statistics:
        expected = _tensors(masked(*inputs))
    with watch:
        for root, function, chosen in roots:
            dependencies.get_pruning_group(root, function, chosen).prune()
    with torch.no_grad(), _Statistics(statistics.moments):
        found = _tensors(model(*inputs))
    scale = max(float(t.abs().max()) for t in expected)
    if [a.shape for a in found] != [b.shape for b in expected]:
        return float("inf")
    pairs = zip(found, expected, strict=True)
    return max(float((a - b).abs().max()) / scale for a, b in pairs)


def _untied(model: nn.Module) -> nn.Module:
    """Return a copy in which no two modules share a parameter, so that each is masked alone."""
    model, seen = copy.deepcopy(model), set()
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None and id(parameter) in seen:
                module._parameters[name] = nn.Parameter(parameter.detach().clone())
            seen.add(id(parameter))
    return model


@torch.no_grad()
def _mask(
    masked: nn.Module, name: str | None, dependency: Any, removed: list[int], both_ends: bool
) -> None:
    """Zero the weights that removed channels go into; if asked, what they come out of, too."""
    module = masked.get_submodule(name) if name else None
    if not isinstance(module, LAYERS):
        return
    if "in_channels" not in dependency.handler.__name__:
        if both_ends and not getattr(module, "transposed", False):
            for parameter in module.parameters():
                parameter[removed] = 0
        return
    assert isinstance(module.weight, Tensor)
    if getattr(module, "transposed", False):
        module.weight[removed] = 0
        return
    per_group = module.weight.shape[1]
    outputs = module.weight.shape[0] // getattr(module, "groups", 1)
    for channel in removed:
        group, slot = divmod(channel, per_group)
        module.weight[group * outputs : (group + 1) * outputs, slot] = 0


def _tensors(output: Any) -> list[Tensor]:
    leaves = torch.utils._pytree.tree_leaves(output)
    return [leaf for leaf in leaves if isinstance(leaf, Tensor)]


def measured(slim: Slim, case: Case) -> dict[str, Any]:
    """Slim a network in a process of its own: outcome, seconds of CPU time, peak memory."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        with os.fdopen(writing, "w") as file, Path(os.devnull).open("w") as silent:
            os.dup2(silent.fileno(), 1)
            os.dup2(silent.fileno(), 2)
            watch = Watch()
            try:
                error = slim(case, watch)
                outcome = "exact" if error < EXACT else f"wrong ({error:.0e})"
            except Exception as failure:
                outcome = f"refused ({type(failure).__name__})"
            json.dump({"outcome": outcome, "seconds": watch.seconds, "peak": watch.peak}, file)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as file:
        text = file.read()
    os.waitpid(child, 0)
    return dict(json.loads(text)) if text else {"outcome": "crashed", "seconds": 0.0, "peak": 0}


def _memory(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))


def main() -> None:
    """Install the peer, and print the tables, line by line.

    Arguments are names of networks, or beginnings of them, such as "monai"; "steps" is the second
    table.
    """
    asked = tuple(sys.argv[1:])
    cases = [case for case in (*TOPOLOGIES, *NETWORKS) if not case.slow]
    if asked:
        cases = [case for case in cases if case.name.startswith(asked)]
    if not (TARGET / "torch_pruning").is_dir():
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
        command += ["--target", str(TARGET), f"torch-pruning=={VERSION}"]
        subprocess.run(command, check=True, stdout=sys.stderr)
    sys.path.append(str(TARGET))
    # Before the forks, so that imports are not measured.
    import torch_pruning  # noqa: F401

    warnings.simplefilter("ignore")
    libraries = {"ranp": by_ranp, f"Torch-Pruning {VERSION}": by_torch_pruning}
    for slim in libraries.values():  # the first call sets things up
        with contextlib.suppress(Exception):
            slim(TOPOLOGIES[0], Watch())
    if cases:
        print_outcomes(libraries, cases)
    if not asked or "steps" in asked:
        print_steps()


def print_outcomes(libraries: dict[str, Slim], cases: list[Case]) -> None:
    """Print whether each library slims each network exactly."""
    print("| network | " + " | ".join(f"{name} | s | MB" for name in libraries) + " |")
    print("|---|" + len(libraries) * "---|---:|---:|")
    totals = {
        name: dict.fromkeys(("exact", "wrong", "refused", "crashed"), 0) for name in libraries
    }
    for case in cases:
        cells = [case.name]
        for name, slim in libraries.items():
            found = measured(slim, case)
            totals[name][found["outcome"].split()[0]] += 1
            cells += [found["outcome"], f"{found['seconds']:.2f}", f"{found['peak'] / 1e6:.0f}"]
        print(f"| {' | '.join(cells)} |", flush=True)
    for name, counts in totals.items():
        told = ", ".join(f"{count} {outcome}" for outcome, count in counts.items())
        print(f"\n{name}: {told} of {len(cases)}.")


if __name__ == "__main__":
    main()
