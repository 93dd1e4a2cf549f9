"""Slim networks in the manner of Hugging Face: `save_pretrained` and `from_pretrained`.

A directory holds `config.json` (the arguments of the full network), `plan.json` (which neurons
are kept) and `model.safetensors` (the weights of the slim network). Nothing is unpickled.
"""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import ranp


class Pretrained:
    """Mixed into a network, gives it the two methods."""

    config: dict[str, Any]
    plan: ranp.Plan | None = None

    def __init_subclass__(cls) -> None:
        """Notes the arguments that a network is made with."""
        make = cls.__init__

        def noting(self: Any, *args: Any, **kwargs: Any) -> None:
            bound = inspect.signature(make).bind(self, *args, **kwargs)
            bound.apply_defaults()
            make(self, *args, **kwargs)
            self.config = {name: v for name, v in bound.arguments.items() if name != "self"}

        cls.__init__ = noting  # type: ignore[method-assign]

    def pruned(self, *args: Any, **options: Any) -> Any:
        """A slim copy, by `ranp.prune`, that remembers its plan."""
        result = ranp.prune(self, *args, **options)  # type: ignore[arg-type]
        result.model.plan = result.plan  # type: ignore[assignment]
        return result.model

    def save_pretrained(self, directory: str | Path) -> None:
        """Writes configuration, plan and weights."""
        directory = Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "config.json").write_text(json.dumps(self.config, indent=2))
        if self.plan is not None:
            self.plan.save(directory / "plan.json")
        ranp.save_weights(self, directory / "model.safetensors")  # type: ignore[arg-type]

    @classmethod
    def from_pretrained(cls, directory: str | Path) -> Any:
        """Makes the full network, slims it by the plan, and loads the weights."""
        directory = Path(directory)
        model: Any = cls(**json.loads((directory / "config.json").read_text()))
        if (directory / "plan.json").exists():
            plan = ranp.Plan.load(directory / "plan.json")
            model = plan.apply(model)
            model.plan = plan
        ranp.load_weights(model, directory / "model.safetensors")
        return model.eval()


class Segmenter(Pretrained, nn.Module):
    """A network that can be saved and loaded, slim or not."""

    def __init__(self, classes: int, width: int = 16) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv3d(1, width, 3, padding=1), nn.BatchNorm3d(width), nn.ReLU()
        )
        self.head = nn.Conv3d(width, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


def main() -> None:
    model = Segmenter(classes=3)
    batches = [
        (torch.rand(2, 1, 12, 12, 12), torch.randint(0, 3, (2, 12, 12, 12))) for _ in range(2)
    ]
    slim = model.pruned(batches, nn.functional.cross_entropy, sparsity=0.5)
    slim.save_pretrained("slim-segmenter")

    again = Segmenter.from_pretrained("slim-segmenter")
    x = torch.rand(1, 1, 12, 12, 12)
    print(f"{again.head.in_channels} of {model.head.in_channels} channels at the head")
    print(f"same output: {torch.equal(again(x), slim.eval()(x))}")


if __name__ == "__main__":
    main()
