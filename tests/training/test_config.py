from __future__ import annotations

import pytest

from ranp.datasets import synthesise
from ranp.errors import UsageError
from ranp.training.config import first_difference, load_config, parse_config, recipe_names

NAMES = [
    "brats-unet3d",
    "clips-mobilenetv2",
    "decathlon-unet3d",
    "hippocampus-unet3d",
    "shapenet-unet3d",
    "ucf101-i3d",
    "ucf101-mobilenetv2",
    "volumes-resnet3d",
]


def test_recipes_are_packaged():
    assert recipe_names() == NAMES


def test_recipes_hold_the_papers_settings():
    shapenet, brats = load_config("shapenet-unet3d"), load_config("brats-unet3d")
    assert (shapenet.epochs, shapenet.batch, shapenet.data.size) == (100, 12, 64)
    assert shapenet.optimizer.model_dump() == {
        "name": "sgd",
        "lr": 0.1,
        "weight_decay": 1e-4,
        "momentum": 0.9,
        "dampening": 0.0,
        "amsgrad": False,
    }
    assert (shapenet.schedule.name, shapenet.schedule.decay) == ("exponential", 0.04)
    assert (shapenet.pruning.sparsity, shapenet.pruning.lam) == (0.7824, 11)
    assert (brats.epochs, brats.batch, brats.data.size) == (200, 2, 128)
    assert (brats.optimizer.name, brats.optimizer.lr, brats.optimizer.amsgrad) == (
        "adam",
        1e-3,
        True,
    )
    assert (brats.schedule.name, brats.schedule.milestones) == ("multistep", (150,))
    assert (brats.pruning.sparsity, brats.pruning.lam) == (0.7817, 15)
    assert (brats.data.options, brats.scoring_size) == ({"loss": "authors"}, 96)
    for name, size, sparsity in (
        ("ucf101-mobilenetv2", 112, 0.3315),
        ("ucf101-i3d", 224, 0.2532),
    ):
        config = load_config(name)
        assert (config.epochs, config.batch, config.data.size) == (100, 8, size)
        assert (config.data.options, config.scoring_size) == ({"divisor": 1}, size)
        assert (config.optimizer.name, config.optimizer.lr) == ("sgd", 0.1)
        assert (config.optimizer.momentum, config.optimizer.dampening) == (0.9, 0.9)
        assert config.optimizer.weight_decay == 1e-3
        assert config.schedule.milestones == (40, 55, 60, 70)
        assert (config.pruning.sparsity, config.pruning.lam) == (sparsity, 80)


@pytest.mark.parametrize("name", NAMES)
def test_recipes_prune_only_when_asked_and_say_how_they_run(name):
    assert load_config(name).pruning.method is None
    from importlib import resources

    text = (resources.files("ranp.training") / "recipes" / f"{name}.yaml").read_text()
    first, second, *_ = text.splitlines()
    assert first.startswith(f"# ranp train {name} ")
    assert second.startswith("# Needs: ")
    assert "# Takes: " in text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("epoch=3", r"unknown key 'epoch'. Did you mean 'epochs'\?"),
        ("optimizer.learning=3", r"unknown key 'optimizer.learning'"),
        ("optimizer.lrr=3", r"unknown key 'optimizer.lrr'. Did you mean 'lr'\?"),
        ("optimizer.lr=-1", r"'optimizer.lr' is -1: input should be greater than 0"),
        ("optimizer.name=sdg", r"'optimizer.name' is 'sdg'"),
        ("epochs.many=3", r"'epochs' is a value"),
        ("epochs", r"write key=value"),
        ("epochs=[", r"is not a YAML value"),
    ],
)
def test_wrong_settings_are_refused(text, message):
    with pytest.raises(UsageError, match=message):
        load_config("hippocampus-unet3d", overrides=[text])


def test_overrides_win_over_smoke_and_leave_the_rest():
    config = load_config(
        "shapenet-unet3d", smoke=True, overrides=["network.options.base_width=2", "seed=7"]
    )
    assert config.network.options["base_width"] == 2
    assert config.network.options["levels"] == 4
    assert (config.seed, config.data.size) == (7, 16)


def test_own_recipe_files(tmp_path):
    path = tmp_path / "mine.yaml"
    with pytest.raises(UsageError, match="cannot read recipe"):
        load_config(str(path))
    path.write_text("task: [")
    with pytest.raises(UsageError, match="is not YAML"):
        load_config(str(path))
    path.write_text("task: parts")
    with pytest.raises(UsageError, match="the key 'optimizer' is missing"):
        load_config(str(path))
    with pytest.raises(UsageError, match=r"unknown recipe 'shapenet-unet'. Did you mean"):
        load_config("shapenet-unet")


def test_a_recipe_file_cannot_import_code(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("network: {name: 'os:getcwd'}")
    with pytest.raises(UsageError, match=r"--network package\.module:factory"):
        load_config(str(path))


def test_first_difference_names_key_and_values():
    one = load_config("brats-unet3d")
    other = load_config("brats-unet3d", overrides=["optimizer.lr=0.5"])
    assert first_difference(one, other) == "optimizer.lr is 0.001 there and 0.5 here"
    unused = load_config("brats-unet3d", overrides=["pruning.sparsity=0.5"])
    assert first_difference(one, unused) is None
    pruned = load_config("brats-unet3d", overrides=["pruning.method=snip"])
    assert first_difference(one, pruned) == "pruning.method is None there and 'snip' here"
    assert first_difference(one, parse_config(one.model_dump(mode="json"), "copy")) is None


def test_a_recipe_scales_itself_to_the_data(tmp_path):
    synthesise("volumes", tmp_path / "set", cases=6, size=20, seed=0, classes=3)
    said = []
    config = load_config("volumes-resnet3d", data=tmp_path / "set", say=said.append)
    assert config.network.options["classes"] == 3
    assert config.data.size == 24  # the next multiple of 8
    assert said[0].startswith(
        "Adapted to 6 cases of 1 channels, 3 classes and median shape 20x20x20"
    )
    chosen = load_config(
        "volumes-resnet3d", data=tmp_path / "set", overrides=["data.size=32"], smoke=True
    )
    assert (chosen.data.size, chosen.network.options["classes"]) == (32, 3)
    assert load_config("volumes-resnet3d").network.options["classes"] == 10


def test_a_network_of_ones_own_is_not_scaled(tmp_path):
    synthesise("volumes", tmp_path / "set", cases=6, size=20, seed=0, classes=3)
    own = {"network.name": "package.module:factory", "network.options": {}}
    config = load_config("volumes-resnet3d", data=tmp_path / "set", changes=own)
    assert config.network.options == {}
    assert config.data.size == 24


def test_patches_shrink_until_a_training_step_fits(tmp_path):
    synthesise("decathlon", tmp_path / "set", cases=3, size=32, seed=0)

    def edge(memory):
        limit = [f"adapt.memory_gib={memory}"]
        return load_config("decathlon-unet3d", data=tmp_path / "set", overrides=limit).data.size

    assert edge(2) == 32
    assert 16 <= edge(0.03) < 32
    assert edge(1e-6) == 16
