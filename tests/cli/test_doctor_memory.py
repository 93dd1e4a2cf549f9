"""`ranp doctor --memory`: predicted against measured steps, and what `fit` makes of them."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import ranp as library
from ranp.errors import RanpError, UsageError
from ranp.integrations import memory_check
from ranp.integrations.memory_check import WAYS, Checked, compare_memory, keep_correction
from ranp.resources import memory_correction, step_memory
from ranp.resources.step_memory import MeasuredStep, StepRequest, measure_here, measure_steps
from ranp.resources.training_memory import CUDA_CONTEXT

MiB = 2**20
SHAPE = (1, 1, 16, 16, 16)


def small():
    return nn.Sequential(nn.Conv3d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv3d(16, 3, 1))


@pytest.fixture(autouse=True)
def known(monkeypatch, tmp_path):
    monkeypatch.setenv("RANP_CACHE", str(tmp_path))
    networks = {"small": Checked(small, SHAPE), "missing": Checked(small, SHAPE, "no_such_package")}
    monkeypatch.setattr(memory_check, "NETWORKS", networks)
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def measured_as(share, constant=0):
    """As if every step took a share of what is predicted for it."""

    def measure(request):
        return [
            MeasuredStep(
                constant + int(share * (library.predict_training_memory(
                    small(), SHAPE, optimizer=optimizer, precision=precision,
                    loss=step_memory.zero_label_loss, device=request.device,
                ).peak - constant))
            )
            for optimizer, precision in request.ways
        ]  # fmt: skip

    return measure


def test_steps_are_measured_in_every_way_that_the_cpu_computes():
    request = StepRequest(f"{__name__}:small", [], SHAPE, WAYS)
    steps = measure_here(request)
    assert len(steps) == len(WAYS)
    assert not steps[0].failure and steps[0].peak >= 4 * (1 + 16 + 16 + 3) * 16**3
    emulated = [step.failure for step in steps if step.failure]
    assert set(emulated) <= {"emulated by this CPU"}


def test_cuda_is_asked_for_what_is_reserved_and_allocated(monkeypatch):
    calls = []
    fake = SimpleNamespace(
        mem_get_info=lambda: (10 * MiB, 100 * MiB),
        memory_reserved=lambda: 50 * MiB,
        empty_cache=lambda: calls.append("empty"),
        reset_peak_memory_stats=lambda: calls.append("reset"),
        synchronize=lambda: calls.append("wait"),
        max_memory_reserved=lambda: 70 * MiB,
        max_memory_allocated=lambda: 60 * MiB,
    )
    monkeypatch.setattr(torch, "cuda", fake)
    found = step_memory._cuda_meter(lambda: calls.append("step"), 0)
    assert calls == ["empty", "reset", "step", "wait"]
    assert found.peak == 70 * MiB + (100 - 10 - 50) * MiB and found.allocated == 60 * MiB


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_fit_uses_and_names_the_correction(device, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: device == "cuda")
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Card 9000")
    constant = CUDA_CONTEXT if device == "cuda" else 0
    batch = [(torch.rand(SHAPE), torch.zeros(1, 16, 16, 16, dtype=torch.int64))]

    def fit():
        return library.fit(small(), batch, F.cross_entropy, params="60%", device=device)

    before = fit()
    rows = list(compare_memory(device, measure=measured_as(1.25, constant)))
    assert [row.network for row in rows] == ["small"] * len(WAYS)
    assert rows[0].error == pytest.approx(rows[0].predicted / rows[0].measured.peak - 1)
    correction = keep_correction(device, rows)
    assert set(correction.factors) == {"32", "bf16", "16"}
    after = fit()
    for name in ("full", "slim"):
        plain = before.figures[name]["memory"] - constant
        assert after.figures[name]["memory"] == pytest.approx(constant + 1.25 * plain, abs=2)
        assert after.memory[name].peak == after.figures[name]["memory"]
    assert before.notes == ()
    assert "multiplied by 1.250, as `ranp doctor --memory` measured on" in after.notes[0]
    assert correction.device in after.notes[0]


def test_predictions_are_never_made_smaller(monkeypatch):
    rows = list(compare_memory("cpu", measure=measured_as(0.5)))
    failed = [replace(row, measured=MeasuredStep(failure="no")) for row in rows]
    assert keep_correction("cpu", rows).factors == {"32": 1.0, "bf16": 1.0, "16": 1.0}
    with pytest.raises(UsageError, match="no correction was stored"):
        keep_correction("cpu", failed)
    kept = memory_correction.load_correction("cpu")  # what was stored before stays
    assert kept is not None and kept.factors == {"32": 1.0, "bf16": 1.0, "16": 1.0}


def test_a_damaged_correction_is_none(tmp_path):
    keep_correction("cpu", [])
    (path,) = (tmp_path / "memory").iterdir()
    path.write_text(path.read_text().replace("20", "21"))
    assert memory_correction.load_correction("cpu") is None and not path.exists()


def test_the_table_can_be_pasted(ranp, monkeypatch):
    monkeypatch.setattr("ranp.fitting.machine.default_device", lambda: "cpu")
    plain = memory_check.compare_memory
    monkeypatch.setattr(
        memory_check, "compare_memory", lambda device, names: plain(device, names, measured_as(0.8))
    )
    done = ranp("doctor", "--memory")
    assert done.code == 0 and "`ranp fit` multiplies its predictions for this device" in done.err
    assert "small, sgd, 32: +25.0 %" in done.err
    lines = done.out.splitlines()
    table = [line for line in lines if line.startswith("|")]
    assert len(table) == 2 + len(WAYS)
    assert table[2].startswith("| small | 1x1x16x16x16 | sgd | 32 | ")
    assert table[2].endswith("| +25.0 % |")
    assert lines[-1] == "Correction by precision: 32: 1.000, bf16: 1.000, 16: 1.000"
    assert len(ranp("doctor", "--memory", "--json").json["rows"]) == len(WAYS)
    wrong = ranp("doctor", "--memory", "--network", "smal")
    assert wrong.code == 2 and "small" in wrong.err


def test_a_network_that_fails_is_a_row(ranp, monkeypatch):
    wrong = Checked(small, (1, 1, 2, 2, 2))  # smaller than the kernel that it meets
    broken = Checked(lambda: nn.Sequential(nn.AvgPool3d(4), small()), wrong.shape)
    networks = {"broken": broken, "small": Checked(small, SHAPE)}
    monkeypatch.setattr(memory_check, "NETWORKS", networks)
    rows = list(compare_memory("cpu", measure=measured_as(1.0)))
    assert [row.network for row in rows] == ["broken"] * len(WAYS) + ["small"] * len(WAYS)
    assert all(row.error is None and row.predicted == 0 for row in rows[: len(WAYS)])
    assert "the training step fails in '0'" in rows[0].measured.failure
    assert all(row.error == 0 for row in rows[len(WAYS) :])

    monkeypatch.setattr(memory_check, "compare_memory", lambda *given: iter(rows))
    done = ranp("doctor", "--memory", "--device", "cpu")
    assert "broken, sgd, bf16: the training step fails in '0'" in done.err


@pytest.mark.slow
def test_a_process_of_its_own_measures_what_is_predicted():
    request = StepRequest("tests.resources.steps:wide", [], (1, 1, 48, 48, 48), [("adam", "32")])
    from tests.resources.steps import wide

    predicted = library.predict_training_memory(
        wide(), request.shape, loss=step_memory.zero_label_loss
    )
    assert measure_steps(request)[0].peak == pytest.approx(predicted.peak, rel=0.03)


def crash():
    os.kill(os.getpid(), signal.SIGILL)


def test_an_illegal_instruction_is_named_with_the_setting_that_avoids_it():
    request = StepRequest(f"{__name__}:crash", [], SHAPE, WAYS)
    with pytest.raises(RanpError, match="illegal instruction; set ONEDNN_MAX_CPU_ISA="):
        measure_steps(request)
