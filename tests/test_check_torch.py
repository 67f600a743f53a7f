"""A machine without a GPU does not fetch a CUDA build unasked."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

PATH = Path(__file__).parents[1] / ".ci" / "check_torch.py"


@pytest.fixture
def check(monkeypatch):
    spec = importlib.util.spec_from_file_location("check_torch", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(shutil, "which", lambda _: None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    monkeypatch.delenv("TORCH", raising=False)
    return module


@pytest.fixture
def lock(tmp_path):
    path = tmp_path / "requirements.lock"
    path.write_text("numpy==2.3.0\ntorch==2.13.0\n")
    return str(path)


def answer(monkeypatch, *needs: str, text: str | None = None) -> None:
    report = json.dumps({"install": [{"metadata": {"requires_dist": list(needs)}}]})
    done = SimpleNamespace(stdout=report if text is None else text)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: done)


def test_a_cuda_build_is_refused_with_the_remedy(check, lock, monkeypatch, capsys):
    answer(monkeypatch, "filelock", 'nvidia-cublas-cu12==12.8; platform_system == "Linux"')
    assert check.main(lock) == 2
    said = capsys.readouterr().err
    assert "torch==2.13.0" in said
    assert "PIP_EXTRA_INDEX_URL" in said
    assert "TORCH=cuda" in said


def test_the_remedy_repeats_what_was_asked_of_make(check, lock, monkeypatch, capsys):
    answer(monkeypatch, "nvidia-cublas-cu12")
    for goal, said in (("demo", "make demo"), ("", "make install")):
        monkeypatch.setenv("GOAL", goal)
        assert check.main(lock) == 2
        err = capsys.readouterr().err
        assert f"PIP_EXTRA_INDEX_URL=<that index> {said}\n" in err
        assert f"{said} TORCH=cuda" in err


def test_a_cpu_build_a_gpu_and_an_explicit_wish_pass(check, lock, monkeypatch):
    answer(monkeypatch, "filelock")
    assert check.main(lock) == 0
    answer(monkeypatch, "nvidia-cublas-cu12")
    monkeypatch.setenv("TORCH", "cuda")
    assert check.main(lock) == 0
    monkeypatch.delenv("TORCH")
    monkeypatch.setattr(shutil, "which", lambda _: "/usr/bin/nvidia-smi")
    assert check.main(lock) == 0


def test_what_pip_does_not_say_is_no_reason_to_stop(check, lock, monkeypatch):
    answer(monkeypatch, text="")
    assert check.main(lock) == 0
