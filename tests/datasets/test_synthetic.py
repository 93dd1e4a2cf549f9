from __future__ import annotations

import numpy as np
import pytest
import torch

from ranp.datasets import DATASETS, open_cases, synthesise, synthetic_cases, verify
from ranp.datasets.loader import Loader
from ranp.datasets.parts import CATEGORIES
from ranp.datasets.synthetic.motion import MOTIONS, draw_clip, render
from ranp.datasets.synthetic.shapes import draw_shape
from ranp.datasets.synthetic.surfaces import arc, box, ellipsoid, frustum, rod
from ranp.datasets.synthetic.tumours import draw_phantom
from ranp.datasets.voxels import EMPTY
from ranp.errors import UsageError


@pytest.mark.parametrize("kind", DATASETS)
def test_drawn_from_seed_and_index_alone(kind):
    one, two, other = (
        synthetic_cases(kind, size=24, samples=3, seed=seed, frames=4) for seed in (5, 5, 6)
    )
    assert torch.equal(one[2]["x"], two[2]["x"])
    assert torch.equal(one[2]["x"], one[9, 2]["x"])
    assert not torch.equal(one[2]["x"], other[2]["x"])
    assert not torch.equal(one[2]["x"], one[1]["x"])


# --- surfaces -------------------------------------------------------------------------------


ECCENTRICITY = np.sqrt(8) / 3
SPHEROID = 2 * np.pi * (1 + 3 / ECCENTRICITY * np.arcsin(ECCENTRICITY))  # radii 3, 1, 1


@pytest.mark.parametrize(
    ("surface", "distance", "area"),
    [
        (box(2, 4, 6), lambda p: np.abs(p / [1, 2, 3]).max(1) - 1, 2 * (8 + 12 + 24)),
        (ellipsoid(1, 1, 1), lambda p: np.linalg.norm(p, axis=1) - 1, 4 * np.pi),
        (ellipsoid(3, 1, 1), lambda p: np.linalg.norm(p / [3, 1, 1], axis=1) - 1, SPHEROID),
        (
            frustum(2, 1, 3, capped=False),
            lambda p: np.hypot(p[:, 0], p[:, 2]) - (2 - p[:, 1] / 3),
            np.pi * 3 * np.hypot(3, 1),
        ),
        (
            arc(2, 0.5, 0, 180),
            lambda p: np.hypot(np.hypot(p[:, 0], p[:, 1]) - 2, p[:, 2]) - 0.5,
            2 * np.pi**2,
        ),
    ],
)
def test_points_lie_on_the_surface_and_areas_are_right(surface, distance, area):
    points = surface.draw(np.random.default_rng(0), 2000)
    assert points.shape == (2000, 3)
    assert np.abs(distance(points)).max() < 1e-9
    assert surface.area == pytest.approx(area, rel=0.012)


def test_points_are_uniform_by_area():
    rng = np.random.default_rng(0)
    points = frustum(2, 1, 3, capped=False).draw(rng, 20_000)
    # Area of the lower half of a cone's frustum: (r0 + r_mid) / 2 against (r0 + r1) / 2.
    assert (points[:, 1] < 1.5).mean() == pytest.approx((2 + 1.5) / (2 * (2 + 1)), abs=0.01)
    x = np.abs(ellipsoid(5, 1, 1).draw(rng, 20_000)[:, 0])
    # A prolate spheroid's area between the planes x = +-2.5, by quadrature of the profile.
    t = np.linspace(-5, 5, 200_001)
    profile = np.sqrt(np.clip(1 - (t / 5) ** 2 * (1 - 1 / 25), 0, None))
    share = profile[np.abs(t) < 2.5].sum() / profile.sum()
    assert (x < 2.5).mean() == pytest.approx(share, abs=0.01)


def test_rod_goes_from_one_end_to_the_other():
    points = rod((1, 2, 3), (4, 6, 3), 0.1).draw(np.random.default_rng(0), 500)
    along = (points - [1, 2, 3]) @ np.array([0.6, 0.8, 0])
    assert along.min() == pytest.approx(0, abs=1e-9)
    assert along.max() == pytest.approx(5, abs=1e-9)


# --- shapes ---------------------------------------------------------------------------------


def test_shapes_have_the_right_points_labels_and_place():
    occurring = set()
    for index in range(160):
        shape = draw_shape(0, index)
        assert shape.category is CATEGORIES[index % 16]
        assert 2000 <= len(shape.points) == len(shape.labels) <= 3000
        assert set(shape.labels) <= set(shape.category.labels)
        assert np.linalg.norm(shape.points, axis=1).max() == pytest.approx(0.5, abs=1e-4)
        middle = shape.points.min(0) + shape.points.max(0)
        assert np.abs(middle).max() < 1e-4
        occurring |= set(shape.labels.tolist())
    assert occurring == set(range(50))


def test_parts_in_memory():
    sample = synthetic_cases("shapenet", size=32, samples=16, seed=0)[4]
    assert sample["x"].shape == (1, 32, 32, 32)
    assert sample["x"].dtype == torch.float32
    assert sample["y"].dtype == torch.int64
    assert sample["category"] == "Chair"
    assert torch.equal(sample["x"][0] == 1, sample["y"] != EMPTY)
    assert len(synthetic_cases("shapenet", size=32, samples=16, seed=0)) == 16


# --- tumours --------------------------------------------------------------------------------


def test_tumour_regions_are_nested_and_inside_the_brain():
    for index in range(6):
        phantom = draw_phantom(48, 0, index)
        brain = phantom.images[0] != 0
        assert not phantom.labels[~brain].any()
        assert {0, 2, 4} <= set(np.unique(phantom.labels)) <= {0, 1, 2, 4}
        # Nested: going out from necrosis one meets enhancing tumour, never oedema at once.
        necrosis, oedema = phantom.labels == 1, phantom.labels == 2
        touching = 0
        for axis in range(3):
            touching += (necrosis & np.roll(oedema, 1, axis)).sum()
            touching += (necrosis & np.roll(oedema, -1, axis)).sum()
        enhancing = (phantom.labels == 4).sum()
        assert touching < 0.5 * enhancing if phantom.grade == "HGG" else enhancing > 0


def test_tumours_in_memory():
    sample = synthetic_cases("brats", size=32, samples=2, seed=0)[0]
    assert sample["x"].shape == (4, 32, 32, 32)
    assert sample["x"].dtype == torch.float32
    assert set(sample["y"].unique().tolist()) <= {0, 1, 2, 4}


def test_phantoms_look_alike_at_other_resolutions():
    coarse, fine = draw_phantom(32, 0, 1).labels, draw_phantom(64, 0, 1).labels
    agree = (fine[::2, ::2, ::2] > 0) & (coarse > 0)
    assert agree.sum() / (coarse > 0).sum() > 0.8


# --- motion ---------------------------------------------------------------------------------


def test_101_different_motions():
    assert len(MOTIONS) == 101
    assert len({motion.name for motion in MOTIONS}) == 101


def shift_between(one, two):
    """Displacement (down, right) in pixels, by phase correlation."""
    spectra = [np.fft.fft2(frame.mean(-1) - frame.mean()) for frame in (one, two)]
    cross = spectra[1] * spectra[0].conj()
    peak = np.unravel_index(np.fft.ifft2(cross / (np.abs(cross) + 1e-9)).real.argmax(), cross.shape)
    return [p - n if p > n / 2 else p for p, n in zip(peak, cross.shape, strict=True)]


@pytest.mark.parametrize(("label", "down"), [(0, -1), (1, 1)])
def test_up_goes_up_and_down_goes_down(label, down):
    assert MOTIONS[label].degrees == -90 * down
    clip = draw_clip(10, 0, label)
    still = clip.__class__(**{**vars(clip), "background": np.full((6, 6, 3), 120.0)})
    frames = render(still, 4, 100, 100)
    assert shift_between(frames[0], frames[2]) == [down * 7, 0]  # 2 frames at 0.035 heights


def test_still_is_still_and_other_motions_are_not():
    for index in range(10):
        frames = render(draw_clip(10, 0, index), 8, 48, 48).astype(int)
        moving = np.abs(frames[4:] - frames[:-4]).max() > 0
        assert moving == (MOTIONS[index].path != "still" or MOTIONS[index].spin != 0)


def test_channels_agree_as_in_natural_video():
    """Brightness and a tint within 8 % of its range either way: correlation 1 / (1 + 0.16^2)."""
    colours = np.concatenate([draw_clip(10, 0, index).background for index in range(50)])
    correlation = np.corrcoef(colours.reshape(-1, 3).T)[np.triu_indices(3, 1)]
    np.testing.assert_allclose(correlation, 1 / (1 + 0.16**2), atol=0.005)
    for index in range(5):
        pixels = render(draw_clip(10, 0, index), 2, 48, 48).reshape(-1, 3).T
        assert np.corrcoef(pixels)[np.triu_indices(3, 1)].min() > 0.94


def test_one_moment_says_nothing_about_the_class():
    """Mean and spread of the picture at frames 0 and 11 are the same for all classes."""
    classes, clips = 10, 40
    values = np.zeros((classes, clips, 2))
    for index in range(classes * clips):
        frames = render(draw_clip(classes, 3, index), 12, 32, 32)
        values[index % classes, index // classes] = frames[0].std(), frames[11].std()
    means, error = values.mean(1), values.std(1) / np.sqrt(clips)
    deviation = np.abs(means - means.mean(0)) / error
    assert deviation.max() < 4.5  # standard errors; 20 comparisons


def test_motion_in_memory():
    cases = synthetic_cases("ucf101", size=32, samples=20, seed=0, frames=16, classes=5)
    assert cases[7]["x"].shape == (3, 16, 32, 32)
    assert [int(cases[i]["y"]) for i in range(6)] == [0, 1, 2, 3, 4, 0]


# --- files ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    root = tmp_path_factory.mktemp("synthetic")
    for kind in DATASETS:
        synthesise(kind, root / kind, cases=10, size=32, seed=4)
    return root


@pytest.mark.parametrize("kind", DATASETS)
def test_generated_data_pass_the_verifier(kind, written):
    report = verify(kind, written / kind, workers=1)
    assert report.ok, report.problems
    assert report.cases == 10
    assert not report.notes


@pytest.mark.parametrize("kind", DATASETS)
def test_the_same_arguments_give_the_same_files(kind, written, tmp_path):
    synthesise(kind, tmp_path / "again", cases=10, size=32, seed=4)
    files = [p for p in (written / kind).rglob("*") if p.is_file()]
    assert len(files) >= 10
    for path in files:
        twin = tmp_path / "again" / path.relative_to(written / kind)
        assert twin.read_bytes() == path.read_bytes()


@pytest.mark.parametrize("kind", ["shapenet", "brats", "hippocampus", "decathlon"])
def test_round_trip_recovers_what_is_drawn_in_memory(kind, written):
    drawn = synthetic_cases(kind, size=32, samples=10, seed=4)
    seen = 0
    for split in ("train", "validation"):
        read = open_cases(kind, written / kind, split, size=32)
        for sample in read:
            number = int("".join(filter(str.isdigit, sample["id"].split("/")[-1]))[:5])
            assert torch.equal(sample["x"], drawn[number]["x"])
            assert torch.equal(sample["y"], drawn[number]["y"])
            seen += 1
    assert seen == 10


@pytest.mark.parametrize("kind", DATASETS)
def test_batches_from_files_are_the_same_with_workers_and_after_a_stop(kind, written):
    cases = open_cases(kind, written / kind, "train", size=24, seed=2)
    alone = list(Loader(cases, 1, training=True).epoch(1))
    helped = list(Loader(cases, 1, training=True, workers=2).epoch(1))
    resumed = list(Loader(cases, 1, training=True, workers=2).epoch(1, start=2))
    assert len(alone) == len(cases) == len(helped) == len(resumed) + 2
    for one, two in zip([*alone, *alone[2:]], [*helped, *resumed], strict=True):
        assert one["id"] == two["id"]
        assert torch.equal(one["x"], two["x"])
        assert torch.equal(one["y"], two["y"])


def test_round_trip_of_clips_keeps_the_class_and_nearly_the_picture(written):
    from ranp.datasets.video import read_frames

    read = open_cases("ucf101", written / "ucf101", "train", size=32)
    for clip in read.reader.cases[:3]:
        index = next(i for i, motion in enumerate(MOTIONS) if motion.name == clip.class_name)
        assert index == clip.label
        drawn = render(draw_clip(10, 4, index), 40, 32, 42).astype(float)
        error = np.mean((read_frames(clip.path, 0, 40) - drawn) ** 2)
        assert 10 * np.log10(255**2 / error) > 20  # another clip has 10 dB


def test_wrong_use(tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full/x").touch()
    with pytest.raises(UsageError, match="not empty"):
        synthesise("brats", tmp_path / "full", cases=2, size=32, seed=0)
    with pytest.raises(UsageError, match="at least 1, got 0"):
        synthesise("brats", tmp_path / "a", cases=0, size=32, seed=0)
    with pytest.raises(UsageError, match="Did you mean 'brats'"):
        synthesise("brast", tmp_path / "a", cases=1, size=32, seed=0)
    with pytest.raises(UsageError, match="'brats' has no choice of classes"):
        synthesise("brats", tmp_path / "a", cases=1, size=32, seed=0, classes=3)
    with pytest.raises(UsageError, match="1 to 101, got 102"):
        synthesise("ucf101", tmp_path / "a", cases=1, size=32, seed=0, classes=102)
    with pytest.raises(UsageError, match="must be even"):
        synthesise("ucf101", tmp_path / "a", cases=1, size=33, seed=0)
    for kind in ("brats", "hippocampus"):
        with pytest.raises(UsageError, match="at least 24"):
            synthesise(kind, tmp_path / "a", cases=1, size=8, seed=0)
    with pytest.raises(UsageError, match="got 7"):
        synthetic_cases("shapenet", size=7, samples=1, seed=0)[0]
    assert not (tmp_path / "a").exists()
