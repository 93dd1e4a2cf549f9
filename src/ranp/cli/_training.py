"""What is trained, by commands that train: a recipe, or a loop of the user's own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ranp.cli._options import FloorOption, ForwardOption, InputOption, check_loss
from ranp.errors import UsageError
from ranp.user_code import load_function, load_loader

if TYPE_CHECKING:
    from ranp.training.config import Config

FactoryOption = Annotated[
    str | None, typer.Option("--network", help="Your own network as package.module:factory.")
]
DataOption = Annotated[
    Path | None, typer.Option(help="The data set's directory; without it, generated data.")
]


def load_factory(name: str | None) -> Any:
    """Return the user's own factory of networks, if one was named."""
    return None if name is None else load_function(name, "network")


@dataclass(frozen=True)
class RecipeOptions:
    """What is changed in a recipe."""

    network: FactoryOption = None
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a setting; may be repeated."),
    ] = None
    smoke: Annotated[
        bool, typer.Option("--smoke", help="The recipe's smallest scale: ends within minutes.")
    ] = False

    def load(self, recipe: str, data: Path | None, changes: Any = None, **listeners: Any) -> Config:
        """Read and resolve a recipe (see `ranp.training.config.load_config`)."""
        from ranp.training.config import load_config

        own = {} if self.network is None else {"network.name": self.network, "network.options": {}}
        return load_config(
            recipe,
            smoke=self.smoke,
            overrides=self.settings or (),
            changes={**(changes or {}), **own},
            data=data,
            **listeners,
        )


@dataclass(frozen=True)
class TrainingOptions(RecipeOptions):
    """What is trained: a recipe, or a loop of the user's own."""

    recipe: Annotated[
        str | None,
        typer.Option(help="A packaged recipe, or your own YAML file; see `ranp train`."),
    ] = None
    train: Annotated[
        str | None,
        typer.Option(
            help="Your training function, as package.module:function, instead of a recipe: "
            "train(model, seed) yields a metric, or metrics by name, at every check-in."
        ),
    ] = None
    length: Annotated[
        int | None,
        typer.Option(min=1, help="Number of check-ins of a whole training; a recipe sets its own."),
    ] = None
    data: Annotated[
        str | None,
        typer.Option(
            help="The data set's directory; without it, generated data. With --train, batches to "
            "score with as package.module:function."
        ),
    ] = None
    loss: Annotated[
        str | None, typer.Option(help="loss(output, target), as package.module:function.")
    ] = None
    forward: ForwardOption = None
    input_shape: InputOption = None
    floor: FloorOption = None
    cost: Annotated[
        str,
        typer.Option(help="Maximum cost of a race, as a share of the training that follows."),
    ] = "5%"

    def check(self) -> None:
        """Refuse options that contradict each other, before anything is written."""
        if self.train is None and self.recipe is None:
            raise UsageError("give --recipe, or --network and --train for your own training loop")
        if self.train is None:
            given = {"length": self.length, "loss": self.loss, "forward": self.forward}
            unwanted = [f"--{name}" for name, value in given.items() if value is not None]
            if unwanted:
                raise UsageError(f"--recipe says how to train; leave out {' and '.join(unwanted)}")
        elif self.recipe is not None or self.settings or self.smoke:
            raise UsageError("--train replaces a recipe; give one of them")
        elif self.network is None:
            raise UsageError("--train needs the network that is trained; give --network")
        elif self.data is None and not self.input_shape:
            raise UsageError("there is no --data to take the input from; give --input 1,1,64,64,64")

    @property
    def directory(self) -> Path | None:
        """The data set's directory, for a recipe."""
        from ranp.datasets.access import existing_directory

        return None if self.data is None else existing_directory(self.data)

    def config(self) -> Config:
        """Read and resolve the recipe."""
        return self.load(str(self.recipe), self.directory)

    def scored(self) -> dict[str, Any]:
        """Return what to score with, as `race` and `compare` take it; nothing without data."""
        check_loss(self.loss, self.forward)
        if self.data is None and self.loss is None and self.forward is None:
            return {}
        if self.data is None or (self.loss is None and self.forward is None):
            raise UsageError(
                "methods that score with data need both; give --data and --loss (or --forward)"
            )
        loader = load_loader(self.data, "--data")
        if self.forward is not None:
            return {"score_with": loader, "forward": load_function(self.forward, "--forward")}
        return {"score_with": (loader, load_function(str(self.loss), "--loss"))}


RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="A run directory.")]


@dataclass(frozen=True)
class TrainedOptions:
    """Which weights of a trained network are loaded, and into what."""

    weights: Annotated[
        Literal["best", "last"], typer.Option(help="Weights of the best epoch, or the last ones.")
    ] = "best"
    network: FactoryOption = None

    def keywords(self) -> dict[str, Any]:
        """Return the weights and the factory, as `ranp.training.inference` takes them."""
        return {"weights": self.weights, "factory": load_factory(self.network)}
