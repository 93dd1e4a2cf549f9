"""Which network a score or a plan belongs to."""

from __future__ import annotations

from ranp.errors import IntegrityError
from ranp.files import canonical_json, sha256
from ranp.graph import ChannelGraph


def fingerprint(graph: ChannelGraph) -> str:
    """Return a hash of the names and shapes of all parameters and buffers, in their order."""
    shapes = [[name, list(tensor.shape)] for name, tensor in graph.shapes.items()]
    return sha256(canonical_json(shapes))


def check_fingerprint(graph: ChannelGraph, expected: str, what: str) -> None:
    """Refuse scores that were taken of another network."""
    if fingerprint(graph) != expected:
        raise IntegrityError(f"the {what} are of another network; score this one")
