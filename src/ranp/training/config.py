"""What a training run is: one configuration, checked when it is read, stored with the run.

Importing this module does not import torch.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_serializer,
    model_validator,
)

from ranp.datasets import Dataset, find_dataset
from ranp.datasets.access import MAX_CASES, MAX_EDGE
from ranp.errors import IntegrityError, UsageError, suggest

_RECIPES = resources.files("ranp.training") / "recipes"


class Section(BaseModel):
    """A part of the configuration: frozen, and unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class NetworkConfig(Section):
    """The network.

    Attributes:
        name: A registered network (`ranp.models.NETWORKS`) or, from the command line alone,
            `package.module:factory`.
        options: Arguments that it is built with.
    """

    name: str
    options: dict[str, int | bool] = {}

    @property
    def is_own(self) -> bool:
        """Whether the name is that of the user's own factory."""
        return ":" in self.name


class DataConfig(Section):
    """The data.

    Attributes:
        kind: Name of a registered data set (`ranp.datasets.DATASETS`).
        size: Edge of grids, crops or frames in training.
        validation_size: The same in validation, where it differs.
        fold: Which fold validates.
        workers: Processes that read ahead.
        cases: How many cases are generated where no data is given.
        generated_size: Edge of the generated volumes or frames.
        classes: Classes of generated clips.
        options: Settings of the data set's own, such as {divisor: 1} (`Dataset.options`).
    """

    kind: str
    size: int = Field(gt=0, le=MAX_EDGE)
    validation_size: int | None = Field(default=None, gt=0, le=MAX_EDGE)
    fold: int = Field(default=0, ge=0)
    workers: int = Field(default=0, ge=0, le=1024)
    cases: int = Field(default=64, gt=0, le=MAX_CASES)
    generated_size: int = Field(default=64, gt=0, le=MAX_EDGE)
    classes: int | None = Field(default=None, gt=1)
    options: dict[str, int | float | str] = {}

    @property
    def dataset(self) -> Dataset:
        """The data set, with its options."""
        return find_dataset(self.kind).configured(self.options)

    @property
    def size_in_validation(self) -> int:
        """Edge of grids, crops or frames in validation and prediction."""
        return self.validation_size or self.size

    @field_validator("kind")
    @classmethod
    def _is_registered(cls, kind: str) -> str:
        try:
            return find_dataset(kind).name
        except UsageError as error:
            raise ValueError(str(error)) from error

    @field_validator("options")
    @classmethod
    def _are_known(cls, options: dict[str, Any], known: ValidationInfo) -> dict[str, Any]:
        if "kind" in known.data:  # if not, that is refused
            try:
                find_dataset(known.data["kind"]).configured(options)
            except UsageError as error:
                raise ValueError(str(error)) from error
        return options

    @model_serializer(mode="wrap")
    def _without_empty_options(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave options out where there are none, as in what older versions stored."""
        content: dict[str, Any] = serialize(self)
        return content if self.options else {k: v for k, v in content.items() if k != "options"}


class PruningConfig(Section):
    """Pruning before training.

    Attributes:
        method: One of `ranp methods`; none trains the full network.
        sparsity: The share of neurons to remove.
        lam: lambda of Eq. 10.
        coupling: How channels that are tied by additions are decided.
        floor: Minimum number of neurons of every layer, or "auto" for what the network needs.
        batches: Batches of one sample to score with; all of the training set if not given.
        size: Edge of the volumes to score with, if not the training size.
    """

    method: str | None = None
    sparsity: float = Field(default=0.8, gt=0, lt=1)
    lam: float = Field(default=11.0, ge=0)
    coupling: Literal["paper", "sum", "max", "mean"] = "paper"
    floor: Annotated[int, Field(ge=0)] | Literal["auto"] = 0
    batches: int | None = Field(default=None, gt=0)
    size: int | None = Field(default=None, gt=0, le=MAX_EDGE)


class OptimizerConfig(Section):
    """The optimizer. `momentum` and `dampening` are for SGD, `amsgrad` for Adam and AdamW.

    SGD without dampening has Nesterov's momentum, which knows none.
    """

    name: Literal["sgd", "adam", "adamw"]
    lr: float = Field(gt=0)
    weight_decay: float = Field(default=0.0, ge=0)
    momentum: float = Field(default=0.9, ge=0, lt=1)
    dampening: float = Field(default=0.0, ge=0, le=1)
    amsgrad: bool = False


class ScheduleConfig(Section):
    """The learning rate over the epochs, which count from 1 (see `optim.learning_rate`)."""

    name: Literal["constant", "exponential", "multistep", "cosine"] = "constant"
    decay: float = Field(default=0.04, ge=0)
    milestones: tuple[int, ...] = ()
    factor: float = Field(default=0.1, gt=0)


class LoopConfig(Section):
    """Settings of the training loop, for any network, data and task.

    Attributes:
        optimizer: The optimizer.
        schedule: Its learning rate over the epochs.
        epochs: Passes over the training set.
        batch: Samples of one forward pass over all devices together.
        accumulate: Forward passes per step of the optimizer.
        clip: Maximum norm of the gradient (gradient clipping).
        precision: "32", "bf16" or "16"; the latter two are mixed.
        recompute: Activation checkpointing: less memory, more time.
        channels_last: Channels-last memory layout, often faster.
        compile: `torch.compile` the network.
        optimize: Before the first step, look for faster ways to compute the same network on this
            CPU (`ranp.optimize`, which chooses the memory layout, too). Numbers are rounded
            differently then, and a run that is resumed need not end with the same bits.
        seed: Seed of weights, order, crops and dropout.
        validate_every: Epochs between validations; the last five are validated in any case.
        checkpoint_minutes: Minutes between checkpoints inside an epoch.
    """

    optimizer: OptimizerConfig
    schedule: ScheduleConfig = ScheduleConfig()
    epochs: int = Field(gt=0, le=10**6)
    batch: int = Field(gt=0, le=MAX_CASES)
    accumulate: int = Field(default=1, gt=0, le=MAX_CASES)
    clip: float | None = Field(default=None, gt=0)
    precision: Literal["32", "bf16", "16"] = "32"
    recompute: bool = False
    channels_last: bool = False
    compile: bool = False
    optimize: bool = False
    seed: int = Field(default=0, ge=0, lt=2**32)
    validate_every: int = Field(default=1, gt=0)
    checkpoint_minutes: float = Field(default=10.0, ge=0)

    @model_validator(mode="after")
    def _has_something_to_optimize(self) -> LoopConfig:
        if self.optimize and (self.compile or self.precision != "32"):
            raise ValueError("optimize is for precision 32 without compile: leave out one of them")
        return self


class Config(LoopConfig):
    """A training run: network, data, pruning and loop.

    Attributes:
        recipe: The name of the recipe it came from.
        task: Name of the data set's task, which follows from `data.kind`.
        network: Which network.
        data: Which data.
        pruning: How it is pruned first.
    """

    recipe: str
    task: str = ""
    network: NetworkConfig
    data: DataConfig
    pruning: PruningConfig = PruningConfig()

    @property
    def scoring_size(self) -> int:
        """Edge of the samples to score with."""
        return self.pruning.size or self.data.size

    @field_validator("recipe")
    @classmethod
    def _is_no_path(cls, name: str) -> str:
        if not name.strip(".") or re.search(r"[/\\\x00-\x1f]", name):
            raise ValueError("must be a name; leave out slashes and control characters")
        return name

    @model_validator(mode="after")
    def _has_the_task_of_its_data(self) -> Config:
        task = find_dataset(self.data.kind).task_name
        if self.task not in ("", task):
            raise ValueError(f"task must be '{task}' for {self.data.kind} data, got '{self.task}'")
        object.__setattr__(self, "task", task)  # frozen; still stored with the run
        return self


def recipe_names() -> list[str]:
    """Return the names of the packaged recipes."""
    names = [path.name for path in _RECIPES.iterdir()]
    return sorted(name.removesuffix(".yaml") for name in names if name.endswith(".yaml"))


def load_config(
    recipe: str,
    *,
    smoke: bool = False,
    overrides: Sequence[str] = (),
    changes: Mapping[str, Any] | None = None,
    data: Path | None = None,
    say: Callable[[str], None] = lambda message: None,
) -> Config:
    """Read a recipe and resolve it.

    Args:
        recipe: Name of a packaged recipe, or a YAML file of your own.
        smoke: Whether to apply the recipe's section `smoke`, which ends within a minute.
        overrides: Texts `key=value` with dotted keys and YAML values.
        changes: More of the same, as values; they come last.
        data: Directory of the data set: a recipe with a section `adapt` scales itself to it.
        say: Called with what it chose.

    Raises:
        UsageError: An unknown recipe, key or value; the closest known name is suggested.
    """
    content, name = _read_recipe(recipe)
    small = content.pop("smoke", None)
    network = content.get("network")
    named = network.get("name") if isinstance(network, dict) else None
    if ":" in str(named):
        raise UsageError(
            f"recipe '{recipe}' names code to import ({named}), which a file must not; give it on "
            "the command line: --network package.module:factory"
        )
    given = set()
    if smoke:
        if not isinstance(small, dict):
            raise UsageError(f"recipe '{recipe}' has no section 'smoke'")
        _assign(content, _flat(small).items())
        given = {"data.size"} & _flat(small).keys()
    chosen = [*map(_parse_override, overrides), *(changes or {}).items()]
    _assign(content, chosen)
    given |= {key for key, _ in chosen}
    limits = content.pop("adapt", None)
    if limits is not None and data is not None:
        from ranp.training.adapting import adapt  # imports torch

        before = parse_config({"recipe": name, **content}, f"recipe '{recipe}'")
        adapted, sentence = adapt(before, limits, data, frozenset(given))
        say(sentence)
        _assign(content, adapted.items())
    return parse_config({"recipe": name, **content}, f"recipe '{recipe}'")


def parse_config(content: Mapping[str, Any], what: str, *, stored: bool = False) -> Config:
    """Validate a configuration's keys and values; `what` begins the error message.

    Values that a file of ours has `stored` are of their own types, and one that is not is no
    mistake of the user's.
    """
    try:
        if stored:
            return Config.model_validate_json(json.dumps(content), strict=True)
        return Config.model_validate(content)
    except ValidationError as error:
        refused = IntegrityError if stored else UsageError
        raise refused(f"{what}: {_first_problem(error)}") from error


def _read_recipe(recipe: str) -> tuple[dict[str, Any], str]:
    if recipe in recipe_names():
        return deepcopy(_packaged(recipe)), recipe
    if not recipe.endswith((".yaml", ".yml")):
        raise UsageError(f"unknown recipe '{recipe}'.{suggest(recipe, recipe_names())}")
    try:
        text = Path(recipe).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"cannot read recipe '{recipe}': {reason}") from error
    content = _parse_yaml(text, f"recipe '{recipe}'", "YAML")
    if not isinstance(content, dict):
        raise UsageError(f"recipe '{recipe}' is not a mapping of keys to values")
    return content, Path(recipe).stem


@cache
def _packaged(recipe: str) -> dict[str, Any]:
    """Parse a packaged recipe once: the cells of an experiment ask for it hundreds of times."""
    content: dict[str, Any] = yaml.safe_load(
        (_RECIPES / f"{recipe}.yaml").read_text(encoding="utf-8")
    )
    return content


def _parse_yaml(text: str, what: str, kind: str) -> Any:
    """Parse YAML; refuse what is none, is nested too deeply, or has values that cannot be."""
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError) as error:
        raise UsageError(f"{what} is not {kind}: {' '.join(str(error).split())}") from error
    except RecursionError as error:
        raise UsageError(f"{what} is nested too deeply; write fewer levels") from error


def _parse_override(text: str) -> tuple[str, Any]:
    key, separator, value = text.partition("=")
    if not separator:
        raise UsageError(f"--set {text}: write key=value, such as optimizer.lr=0.01")
    shown = text if len(text) < 200 else f"{text[:200]}..."
    return key, _parse_yaml(value, f"--set {shown}: the value", "a YAML value")


def _assign(content: dict[str, Any], changes: Iterable[tuple[str, Any]]) -> None:
    """Set values by dotted key."""
    for dotted, value in changes:
        *path, last = dotted.split(".")
        section = content
        for key in path:
            section = section.setdefault(key, {})
            if not isinstance(section, dict):
                raise UsageError(f"'{dotted}': '{key}' is a value, and has no keys below it")
        section[last] = value


def _first_problem(error: ValidationError) -> str:
    first = error.errors()[0]
    key = ".".join(map(str, first["loc"]))
    if first["type"] == "extra_forbidden":
        *path, last = first["loc"]
        return f"unknown key '{key}'.{suggest(str(last), _keys_at(path))}"
    if first["type"] == "missing":
        return f"the key '{key}' is missing"
    message = str(first["msg"]).removeprefix("Value error, ")
    if not key:  # of several keys together
        return message
    return f"'{key}' is {first['input']!r}: {message[0].lower()}{message[1:]}"


def _keys_at(path: Sequence[int | str]) -> list[str]:
    section: Any = Config
    for key in path:
        section = section.model_fields[str(key)].annotation
    return list(section.model_fields)


def _flat(value: Any, prefix: str = "") -> dict[str, Any]:
    """Nested mappings by dotted key."""
    if not isinstance(value, Mapping):
        return {prefix: value}
    items: dict[str, Any] = {}
    for key, inner in value.items():
        items |= _flat(inner, f"{prefix}.{key}" if prefix else str(key))
    return items


def first_difference(one: Config, other: Config) -> str | None:
    """Return the first key in which two configurations differ, with both values.

    How a network would be pruned makes no difference where neither is.
    """
    pruned = one.pruning.method is not None or other.pruning.method is not None
    unused = None if pruned else {"pruning"}
    left, right = (_flat(config.model_dump(exclude=unused)) for config in (one, other))
    for key in dict.fromkeys([*left, *right]):
        if left.get(key) != right.get(key):
            return f"{key} is {left.get(key)!r} there and {right.get(key)!r} here"
    return None
