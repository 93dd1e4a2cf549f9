"""Tracing, planning and slimming of the 23-layer 3D-UNet: seconds and extra memory."""

from __future__ import annotations

import subprocess
import sys

_PROGRAM = """
import resource, sys, time
import torch
from ranp.graph import build_graph
from ranp.models import build_network
from ranp.pruning import Choice, Chooser
from ranp.slimming import Plan, slim_model

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

# What the first trace of a process loads (symbolic shapes, decompositions) is not the network's.
warm = torch.nn.Sequential(torch.nn.Conv3d(1, 4, 3), torch.nn.BatchNorm3d(4), torch.nn.ReLU(),
                           torch.nn.Conv3d(4, 2, 1))
build_graph(warm, (1, 1, 8, 8, 8))

edge = int(sys.argv[1])
model = build_network("unet3d-23-shapenet")
size = sum(p.numel() * p.element_size() for p in model.parameters())
before, start = peak(), time.perf_counter()
graph = build_graph(model, (1, 1, edge, edge, edge))
traced = time.perf_counter()
chooser = Chooser(model, graph, Choice.make("layerwise"))
alive = chooser.choose_feasible(0.5)
Plan.make(graph, alive, method="layerwise", settings={})
planned = time.perf_counter()
slim = slim_model(model, graph, alive, init="keep")
done = time.perf_counter()
print(f"{edge:>6}^3  trace {traced - start:5.2f} s  plan {planned - traced:5.2f} s  "
      f"slim {done - planned:5.2f} s  together {done - start:5.2f} s (at most 5)  "
      f"extra memory {(peak() - before) / size:4.2f} x the model's {size / 2**20:.0f} MiB "
      "(at most 1.5)")
"""


def run() -> None:
    """Prints one line per input size; each in a process of its own, for its peak memory."""
    print("unet3d-23-shapenet, half of the neurons of every layer removed, weights kept")
    for edge in (64, 128, 256):
        subprocess.run([sys.executable, "-c", _PROGRAM, str(edge)], check=True)
