"""A plan says how arms will be computed, and refuses what no machine can."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from ablate.cli.plan_view import plan_view
from ablate.errors import PlanError
from ablate.plan import kernel_lines, plan_sweep

CODE = """
import contextlib, io, json, sys
from ablate.cli import main
out = io.StringIO()
with contextlib.redirect_stdout(out):
    code = main(["plan", "sweep=hello", "model.attention_dropout=0", "precision=bf16", "--json"])
arms = json.loads(out.getvalue())["arms"]
print(json.dumps([code, "torch" in sys.modules, {arm["arm"]: arm["attention"] for arm in arms}]))
"""


def test_the_kernels_of_each_arm_are_in_the_plan_without_torch() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    code, torch, arms = json.loads(done.stdout)
    assert (code, torch) == (0, False)
    for devices in arms.values():
        assert list(devices) == ["cpu", "cuda"]
        assert list(devices["cpu"]) == ["math or sdpa"]
        assert list(devices["cuda"]) == ["sdpa"]


def test_arms_that_are_computed_differently_have_a_line_each() -> None:
    base = ["sweep=positions", "model.attention_dropout=0", "train.device=cuda"]
    plan = plan_sweep(base)
    lines = kernel_lines(plan.arms)
    flex = [line for line in lines if "on CUDA flex" in line]
    assert len(flex) == 1
    assert "alibi" in flex[0]
    assert "position bias (alibi) without a table" in flex[0]
    assert len(lines) > 1
    assert plan_view(plan, 160)
    masked = kernel_lines(plan_sweep([*base, "data.document_masking=true", "precision=bf16"]).arms)
    assert any("varlen (documents without a table)" in line for line in masked)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["attention=flex", "train.device=cpu"], "no backward pass on a CPU"),
        (["attention=varlen"], "the precision is fp32"),
        (["attention=flex"], "has no dropout"),
    ],
)
def test_what_no_machine_can_compute_is_refused(overrides: list[str], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        plan_sweep(["sweep=hello", *overrides])
