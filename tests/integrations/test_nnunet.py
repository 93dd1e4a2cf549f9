"""The whole way through the real nnU-Net: plan, prune, train, continue, predict, export."""

from __future__ import annotations

import json
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

pytest.importorskip("nnunetv2")

from nnunetv2.experiment_planning import plan_and_preprocess_api as planning
from nnunetv2.imageio.simpleitk_reader_writer import SimpleITKIO
from nnunetv2.inference.predict_from_raw_data import nnUNetPredictor
from nnunetv2.model_sharing.model_export import export_pretrained_model
from nnunetv2.model_sharing.model_import import install_model_from_zip_file
from nnunetv2.paths import nnUNet_preprocessed, nnUNet_raw, nnUNet_results
from nnunetv2.run.run_training import get_trainer_from_args, maybe_load_checkpoint
from nnunetv2.utilities.get_network_from_plans import get_network_from_plans
from nnunetv2.utilities.plans_handling.plans_handler import PlansManager

from ranp.cli import app
from ranp.errors import InfeasibleError, IntegrityError, UsageError
from ranp.graph import build_graph
from ranp.integrations.nnunet import prune_plans, read_slim_plans
from tests.oracle import Reference

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

DATASET = "Dataset901_Balls"
PLAIN, RESIDUAL = "nnUNetPlans", "nnUNetResEncUNetMPlans"
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def nnunet(tmp_path_factory):
    """nnU-Net's folders with six planned and preprocessed cases of 24^3."""
    root = tmp_path_factory.mktemp("nnunet")
    names = ("nnUNet_raw", "nnUNet_preprocessed", "nnUNet_results")
    with pytest.MonkeyPatch.context() as patch:
        for name in names:
            (root / name).mkdir()
            patch.setenv(name, str(root / name))
        patch.setenv("nnUNet_n_proc_DA", "1")
        patch.setenv("nnUNet_compile", "f")
        _write_cases(root / "nnUNet_raw" / DATASET)
        planning.extract_fingerprints([901], num_processes=1, verbose=False)
        for planner in ("ExperimentPlanner", "nnUNetPlannerResEncM"):
            planning.plan_experiments([901], planner)
        planning.preprocess([901], PLAIN, ("2d", "3d_fullres"), (1, 1))
        patch.setenv("nnUNet_n_proc_DA", "0")
        yield root


def _write_cases(folder: Path) -> None:
    random = np.random.default_rng(0)
    (folder / "imagesTr").mkdir(parents=True)
    (folder / "labelsTr").mkdir()
    distance = np.linalg.norm(np.indices((24, 24, 24)) - 11.5, axis=0)
    properties = {
        "sitk_stuff": {"spacing": (1, 1, 1), "origin": (0, 0, 0), "direction": np.eye(3).ravel()}
    }
    for number in range(6):
        label = (distance < 6 + number % 3).astype(np.uint8) + (distance < 4)
        image = label + random.normal(size=label.shape)
        name = f"ball_{number:03d}"
        writer = SimpleITKIO()
        writer.write_seg(
            label.astype(np.uint8), str(folder / "labelsTr" / f"{name}.nii.gz"), properties
        )
        writer.write_seg(
            (100 * (image + 5)).astype(np.uint16),
            str(folder / "imagesTr" / f"{name}_0000.nii.gz"),
            properties,
        )
    about = {
        "channel_names": {"0": "MRI"},
        "labels": {"background": 0, "shell": 1, "core": 2},
        "numTraining": 6,
        "file_ending": ".nii.gz",
    }
    (folder / "dataset.json").write_text(json.dumps(about))


def trainer(configuration, plans, fold=0, *, epochs=1, resume=False):
    made = get_trainer_from_args(
        DATASET, configuration, fold, plans_identifier=plans, continue_training=resume, device=CPU
    )
    made.num_iterations_per_epoch = made.num_val_iterations_per_epoch = 1
    made.num_epochs = epochs
    made.initialize()
    maybe_load_checkpoint(made, resume, False)
    return made


def predictor(folder, folds=(0,)):
    made = nnUNetPredictor(
        use_mirroring=False, perform_everything_on_device=False, device=CPU, allow_tqdm=False
    )
    made.initialize_from_trained_model_folder(str(folder), folds)
    return made


def predict(folder, folds=(0,)):
    """Probabilities of one case."""
    raw = Path(nnUNet_raw) / DATASET / "imagesTr" / "ball_000_0000.nii.gz"
    image, properties = SimpleITKIO().read_images([str(raw)])
    return predictor(folder, folds).predict_single_npy_array(image, properties, None, None, True)[1]


def results(plans, configuration):
    root = Path(nnUNet_results)
    return root / DATASET / f"nnUNetTrainer__{plans}__{configuration}"


def test_train_continue_predict_ensemble_export(nnunet, monkeypatch, tmp_path):
    made = prune_plans(901, "3d_fullres", flops="10%", batches=1)
    assert made.path.name == "nnUNetPlans_ranp.json"
    costs = made.result.plan.costs
    assert 0.08 < costs["slim"]["gflops"] / costs["full"]["gflops"] <= 0.1
    kept = {name: len(layer.kept) for name, layer in made.result.plan.layers.items()}
    for fold in (0, 1):
        trained = trainer("3d_fullres", made.name, fold)
        assert {
            name: module.out_channels
            for name, module in trained.network.named_modules()
            if name in kept
        } == kept
        trained.run_training()
        trained.perform_actual_validation()
    resumed = trainer("3d_fullres", made.name, epochs=2, resume=True)
    assert resumed.current_epoch == 1
    for name, tensor in trainer("3d_fullres", made.name, resume=True).network.state_dict().items():
        assert torch.equal(tensor, resumed.network.state_dict()[name])
    resumed.run_training()

    folder = results(made.name, "3d_fullres")
    single = [predict(folder, (fold,)) for fold in (0, 1)]
    both = predict(folder, (0, 1))
    assert not np.allclose(single[0], single[1])
    assert np.isfinite(both).all() and not np.allclose(both, single[0])

    archive = tmp_path / "model.zip"
    export_pretrained_model(
        DATASET, str(archive), ("3d_fullres",), plans_identifier=made.name, folds=(0, 1)
    )
    assert any(name.endswith("plans.json") for name in zipfile.ZipFile(archive).namelist())
    monkeypatch.setenv("nnUNet_results", str(tmp_path / "elsewhere"))
    install_model_from_zip_file(str(archive))
    assert np.array_equal(predict(results(made.name, "3d_fullres"), (0, 1)), both)


@pytest.mark.parametrize(("plans", "configuration"), [(PLAIN, "2d"), (RESIDUAL, "3d_fullres")])
def test_other_networks_train_and_predict(nnunet, plans, configuration):
    made = prune_plans(
        901, configuration, plans, sparsity=0.5, batches=1, out_plans=f"{plans}_half"
    )
    trained = trainer(configuration, made.name)
    trained.run_training()
    assert np.isfinite(predict(results(made.name, configuration))).all()


def test_the_winner_of_a_race_trains_and_predicts(nnunet):
    settings = {"epochs": 4, "iterations": 1, "cost": 1.0, "candidates": ("thin", "power:0.25")}
    how = {"flops": "20%", "method": "race", "batches": 1, "out_plans": "nnUNetPlans_raced"}
    made = prune_plans(901, "3d_fullres", **how, **settings)
    found = made.race
    assert set(found.curves) == {"thin", "power:0.25"} and found.spent <= found.stated <= 1
    assert all(set(line) == {"dice", "loss"} for curve in found.curves.values() for line in curve)
    slim, full = (made.result.plan.costs[each]["gflops"] for each in ("slim", "full"))
    assert 0.15 < slim / full <= 0.2
    assert read_slim_plans(made.path)["3d_fullres"].plan == found.plan.to_dict()
    words = "nnunet prune 901 3d_fullres --flops 20% --method race --batches 1 --epochs 4"
    more = "--iterations 1 --cost 1 --candidates thin,power:0.25 --out-plans nnUNetPlans_raced"
    again = CliRunner().invoke(app, [*words.split(), *more.split(), "--json"])
    told = json.loads(again.stdout)["race"]
    assert told == json.loads(json.dumps(found.to_dict()))  # from the store, not trained again
    trained = trainer("3d_fullres", made.name)
    kept = {name: len(layer.kept) for name, layer in found.plan.layers.items()}
    modules = dict(trained.network.named_modules())
    assert {name: modules[name].out_channels for name in kept} == kept
    trained.run_training()
    assert np.isfinite(predict(results(made.name, "3d_fullres"))).all()


def network(plans, configuration, *, deep_supervision):
    path = Path(nnUNet_preprocessed) / DATASET / f"{plans}.json"
    found = PlansManager(str(path)).get_configuration(configuration)
    return get_network_from_plans(
        found.network_arch_class_name,
        found.network_arch_init_kwargs,
        found.network_arch_init_kwargs_req_import,
        1,
        3,
        deep_supervision=deep_supervision,
    ), (1, 1, *found.patch_size)


@pytest.mark.parametrize("deep_supervision", [True, False])
@pytest.mark.parametrize("plans", [PLAIN, RESIDUAL])
def test_slim_equals_masked(nnunet, plans, deep_supervision):
    name = f"{plans}_oracle"
    made = prune_plans(901, "3d_fullres", plans, sparsity=0.4, method="random", out_plans=name)
    torch.manual_seed(0)
    full, shape = network(plans, "3d_fullres", deep_supervision=True)
    for parameter in full.parameters():  # nnU-Net zeroes the last gammas: nothing could be seen
        torch.nn.init.normal_(parameter, std=0.2)
    graph = build_graph(full, shape)
    alive = made.result.plan.alive(graph)
    built, _ = network(name, "3d_fullres", deep_supervision=deep_supervision)
    slim = made.result.plan.apply(full.double(), init="keep", graph=graph)
    built.double().load_state_dict(slim.state_dict())  # what nnU-Net builds takes the weights
    full.decoder.deep_supervision = deep_supervision
    x = torch.randn(shape, dtype=torch.float64)
    found = Reference(full, graph, alive, (x,)).compare(built)
    assert found.error <= 1e-10
    assert found.effect > 1e-3


def test_a_memory_budget_keeps_the_patch_and_says_what_nnunet_would_do(nnunet):
    made = prune_plans(901, "3d_fullres", memory="60%", batches=1, out_plans="nnUNetPlans_memory")
    about = read_slim_plans(made.path)["3d_fullres"]
    assert about.memory["slim"] < about.memory["full"]
    plans = json.loads(made.path.read_text())
    source = json.loads((made.path.parent / "nnUNetPlans.json").read_text())
    slim, full = (each["configurations"]["3d_fullres"] for each in (plans, source))
    for key in ("patch_size", "batch_size", "data_identifier"):
        assert slim[key] == full[key]
    assert set(about.instead) == {"patch_size", "batch_size", "estimate"}
    assert about.nnunet_estimate["slim"] < about.nnunet_estimate["full"]


def test_what_cannot_be_pruned_is_said_in_one_line(nnunet):
    with pytest.raises(InfeasibleError, match="no network pruned by ranp-f keeps a memory budget"):
        prune_plans(901, "3d_fullres", memory="1MiB", batches=1)
    with pytest.raises(UsageError, match="nnU-Net cannot start NoTrainer"):
        prune_plans(901, "3d_fullres", sparsity=0.5, trainer="NoTrainer")
    folder = nnunet / "nnUNet_preprocessed" / DATASET
    shutil.move(folder / "nnUNetPlans_2d", folder / "elsewhere")
    with pytest.raises(IntegrityError, match="nnUNetPlans_2d' is missing; run nnUNetv2_preprocess"):
        prune_plans(901, "2d", sparsity=0.5)
    shutil.move(folder / "elsewhere", folder / "nnUNetPlans_2d")
