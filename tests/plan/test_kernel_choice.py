"""A plan says how arms will be computed, and refuses what no machine can."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from ablate.cli.plan_view import plan_view
from ablate.config.compose import Composer
from ablate.config.schema import TrialConfig
from ablate.errors import ConfigError, PlanError
from ablate.model import ModelConfig
from ablate.model.activations import activations
from ablate.model.kernel_case import training_case
from ablate.model.micro_batch import plan_case
from ablate.plan import kernel_lines, plan_sweep, resolve, typed
from ablate.plan.kernel_choice import attention
from ablate.plan.memory import micro_batch

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


HEADS = ["model=olmo2", "size=tiny", "precision=bf16", "train.device=cuda", "model.n_heads=4"]
HEADS += ["model.sliding_window=16", "model.d_model=64", "model.n_layers=4"]


def test_the_heads_of_each_layer_decide() -> None:
    """Those of the lowest layers are 10 wide, those of the model 16."""
    words = [*HEADS, "model.layer_widths=[40,40,64,96]"]
    found = attention(resolve(Composer().compose(words)))["cuda"]
    assert found["sdpa"].startswith("2 layers: a window as a table: varlen has heads of a multiple")
    assert found["varlen"].startswith("2 layers: a window without a table")
    with pytest.raises(ConfigError, match="multiple of 8, and they are 10"):
        attention(resolve(Composer().compose([*words, "attention=varlen"])))


def test_memory_has_a_table_where_the_heads_of_some_layer_need_one() -> None:
    """Rotations of 8 bytes a position and number of a head, and one table of a window in bf16."""
    t = 512
    for widths, sizes, tables in (("null", 16, 0), ("[40,40,64,96]", 10 + 16 + 24, 1)):
        words = [*HEADS, f"train.sequence_length={t}", f"model.layer_widths={widths}"]
        config = resolve(Composer().compose([*words, f"model.max_sequence_length={t}"]))
        model = ModelConfig(**config["model"])
        given = micro_batch(typed(config), model, processes=1, device="cuda")
        assert activations(model, given).tables == 8 * t * sizes + tables * 2 * t * t


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16", "fp16_protected", "pure_bf16"])
@pytest.mark.parametrize("batching", ["concat", "packed", "padded", "dynamic"])
def test_memory_and_kernels_ask_by_one_case(precision: str, batching: str) -> None:
    """A padded row is one document: no kernel is chosen for documents that no batch has."""
    words = ["model=gpt2", "size=tiny", f"precision={precision}", f"batching={batching}"]
    config = resolve(Composer().compose(words))
    model = ModelConfig(**config["model"])
    for device in ("cpu", "cuda"):
        given = micro_batch(typed(config), model, processes=1, device=device)
        asked = training_case(TrialConfig.from_mapping(config), model, device, low_products=True)
        assert plan_case(model, given) == asked
        assert asked.documents == (batching == "packed")
