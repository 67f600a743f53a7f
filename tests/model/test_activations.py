"""The formula of activations against what autograd keeps, counted on fake tensors.

The two share nothing: the formula knows no torch, and the count knows no layer.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from ablate.config.compose import Composer
from ablate.config.options import option_names
from ablate.model import ModelConfig, attention, count, here, linear
from ablate.model.activations import Pass, activations
from ablate.model.checkpointing import STRATEGIES
from ablate.plan import resolve
from ablate.train.traced import shallow, trace

BOUND = 0.01
"""Relative. Tables that are kept, but not by autograd, come on top."""
HERE = Path(__file__).parent
PRESETS = option_names("model", HERE)
GROUPS = (
    "position", "norm", "placement", "qk_norm", "embedding_norm", "bias", "tying", "activation",
    "kv_heads", "window", "dropout", "attention", "feed_forward", "block",
)  # fmt: skip
OPTIONS = [f"{group}={name}" for group in GROUPS for name in option_names(group, HERE)]
WITHOUT = ("attention=flash", "attention=varlen", "attention=flex")
"""Run on a GPU only."""


@pytest.fixture(scope="module", autouse=True)
def low_precision_instructions() -> Iterator[None]:
    """As on a CPU that has them: nothing is computed, so any machine can tell."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(linear, "has_low_precision_products", lambda low: True)
        for module in (attention, here):
            patch.setattr(module, "multiplies_bfloat16", lambda: True)
        yield


def model_of(*words: str) -> ModelConfig:
    return ModelConfig(**resolve(Composer().compose(list(words)))["model"])


def check(model: ModelConfig, given: Pass, *, head: bool = True) -> None:
    counted, formula = trace(model, given, head=head), activations(model, given, head=head)
    assert counted.parameters == count.parameters(model)
    excess = formula.kept - counted.kept
    assert -BOUND * counted.kept <= excess <= BOUND * counted.kept + formula.tables, (
        f"{formula} adds up to {formula.kept:,}, and autograd keeps {counted.kept:,}"
    )


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset(preset: str) -> None:
    """At its own length and width, with few of its layers."""
    model = shallow(model_of(f"model={preset}"), 2)
    for precision, strategy in (("bf16", None), ("fp32", "fine_grained")):
        rows, length = 2, model.max_sequence_length
        given = Pass(
            rows=rows, length=length, precision=precision, device="cpu", checkpointing=strategy
        )
        check(model, given)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_strategy(strategy: str) -> None:
    model = model_of("model=olmo2", "size=1m", "model.n_layers=5")
    given = Pass(rows=2, length=128, precision="fp32", device="cpu", checkpointing=strategy)
    check(model, given, head=strategy != "one_in_two")


@pytest.mark.parametrize("option", [o for o in OPTIONS if o not in WITHOUT])
def test_every_option_of_the_architecture(option: str) -> None:
    """Large enough that a gated activation is fed by two products."""
    base = (
        ["model=olmo2"] if not option.startswith(("block=llama", "placement")) else ["model=gpt2"]
    )
    if option.startswith(("norm", "bias", "dropout", "embedding")):
        base = ["model=gpt2"]
    precision = ("fp32", "bf16", "pure_bf16")[OPTIONS.index(option) % 3]
    model = model_of(*base, "size=1m", "model.n_layers=2", "model.max_sequence_length=640", option)
    check(model, Pass(rows=1, length=600, precision=precision, device="cpu"))


def test_documents_and_short_sequences_and_no_instructions(monkeypatch) -> None:
    """Where attention is spelled out by `auto`, and where products widen their operands."""
    model = model_of("model=olmo2", "size=1m", "model.n_layers=2")
    check(model, Pass(rows=4, length=256, precision="bf16", device="cpu"))
    monkeypatch.setattr(linear, "has_low_precision_products", lambda low: False)
    for module in (attention, here):
        monkeypatch.setattr(module, "multiplies_bfloat16", lambda: False)
    for precision in ("bf16", "pure_bf16", "fp16", "fp16_protected"):
        check(model, Pass(rows=4, length=256, precision=precision, device="cpu", native=False))


HALVES = {
    "fp16": {"precision": "fp16"},
    "naive": {"precision": "fp16", "fused_norms": False},
    "protected": {"precision": "fp16_protected"},
    "foundation": {"precision": "fp16_protected", "foundation_layers": 1},
    "naive above": {
        "precision": "fp16_protected", "foundation_layers": 1, "fused_norms": False,
    },
}  # fmt: skip
NORMS = (
    "model=gpt2 norm=rms", "model=gpt2 placement=peri", "model=gpt2 embedding_norm=on",
    "model=gpt2 model.layer_norm_with_affine=false qk_norm=on", "model=gpt2 norm=low_precision",
    "model=olmo2", "model=olmo2 norm=layer", "model=olmo2 norm=segmented",
    "model=olmo2 qk_norm=per_head model.attention_layer_norm_with_affine=false",
)  # fmt: skip


@pytest.mark.parametrize("words", NORMS)
def test_every_norm_in_float16(words: str) -> None:
    model = model_of(*words.split(), "size=1m", "model.n_layers=2", "model.max_sequence_length=128")
    for options in HALVES.values():
        check(model, Pass(rows=2, length=128, device="cpu", **options))


def test_where_the_foundation_ends_is_seen() -> None:
    """On CUDA too, where each layer's naive norms keep less than torch's own for a CPU."""
    model = model_of("model=olmo2", "size=1m", "model.n_layers=4")
    shared = {"rows": 2, "length": 128, "precision": "fp16_protected", "fused_norms": False}
    bytes_of = [
        activations(model, Pass(**shared, foundation_layers=n)).layers for n in range(5)
    ]  # fmt: skip
    steps = {b - a for a, b in itertools.pairwise(bytes_of)}
    assert len(steps) == 1
    assert steps != {0}


@pytest.mark.slow
@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_whole_with_every_strategy(preset: str) -> None:
    model = model_of(f"model={preset}")
    for strategy in (None, *STRATEGIES):
        given = Pass(
            rows=1,
            length=model.max_sequence_length,
            precision="bf16",
            device="cpu",
            checkpointing=strategy,
        )
        check(model, given)
