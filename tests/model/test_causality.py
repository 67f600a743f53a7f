"""Later tokens that change earlier outputs: every way of reading them, and what only looks so."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from ablate.model.causality import find_leak, leaking_fields
from ablate.model.config import ModelConfig

OWN = "tests.model.own_modules"
BASE = {"d_model": 64, "n_heads": 4, "n_layers": 2, "layer_norm_type": "rms", "vocab_size": 300}
FIELDS = {"Centred": "activation_type", "Convolved": "activation_type", "Mirrored": "position"}
FIELDS |= dict.fromkeys(("Rounded", "Drawing", "Counting"), "activation_type")


def model(*names: str, **fields: object) -> ModelConfig:
    own = {FIELDS.get(name, "layer_norm_type"): f"{OWN}:{name}" for name in names}
    given = {**BASE, "embedding_size": None, "eos_token_id": 0, "pad_token_id": 0, **fields, **own}
    return ModelConfig.from_mapping(given)


@pytest.mark.parametrize(
    "name", ["Rolled", "Faint", "Closed", "Blocked", "RolledAtOneWidth", "Centred", "Mirrored"]
)
@pytest.mark.parametrize("length", [32, 128, 1024])
def test_a_leak_is_found(name: str, length: int) -> None:
    leak = find_leak(model(name), length)
    assert leak is not None
    assert 0 <= leak.position < leak.changed < length
    assert 0 < leak.size <= 1
    if name == "Rolled":
        assert leak.position == leak.changed - 1, "the next one acts most"
    assert f"position {leak.position} change" in str(leak)


@pytest.mark.parametrize(
    "name",
    ["Shifted", "OverRows", "RunningMean", "Subtracted", "AtOneWidth", "Convolved", "Rounded",
     "Drawing"],
)  # fmt: skip
@pytest.mark.parametrize("fields", [{}, {"rope": True, "attention_layer_norm": True}], ids=str)
def test_what_is_causal_is_not_accused(name: str, fields: dict) -> None:
    for length in (16, 128, 1024):
        assert find_leak(model(name, **fields), length) is None


@pytest.mark.parametrize(
    "fields",
    [
        {"attention_dropout": 0.5, "residual_dropout": 0.5, "embedding_dropout": 0.5},
        {"flash_attention": True, "attention_dropout": 0.0},
        {"attention_backend": "flex", "attention_dropout": 0.0},
        {"init_device": "meta"},
        {"norm_noise": 0.3},
        {"mlp_chunk": 7},
        {"block_group_size": 2},
        {"sliding_window": 8},
        {"width_taper": 0.5, "n_layers": 4},
        {"d_model": 8192, "n_heads": 64, "n_layers": 80, "n_kv_heads": 8},
    ],
    ids=str,
)
def test_of_any_model(fields: dict) -> None:
    assert find_leak(model("Shifted", **fields), 128) is None
    assert find_leak(model("Rolled", **fields), 128) is not None


@pytest.mark.parametrize(
    ("name", "message"), [("Counting", "two passes .* differ"), ("Infinite", "not finite")]
)
def test_what_cannot_be_said_is_not_said(name: str, message: str) -> None:
    with pytest.raises(ArithmeticError, match=message):
        find_leak(model(name), 128)


def test_a_module_that_takes_one_width_of_a_large_model_alone_is_not_tested() -> None:
    config = model("AtOneWidth", d_model=4608, n_heads=36)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        find_leak(config, 128)


def test_the_fields_that_leak_are_named() -> None:
    assert leaking_fields(model("Rolled"), 128) == ["layer_norm_type"]
    assert leaking_fields(model("OverRows", "Centred", "Mirrored"), 128) == [
        "activation_type", "position",
    ]  # fmt: skip


def seed_all() -> None:
    torch.manual_seed(1)
    random.seed(1)
    np.random.seed(1)  # noqa: NPY002


def draw_all() -> tuple[float, ...]:
    return float(torch.rand(())), random.random(), float(np.random.rand())  # noqa: NPY002


def test_no_generator_moves() -> None:
    seed_all()
    find_leak(model("Drawing"), 128)
    drawn = draw_all()
    seed_all()
    assert drawn == draw_all()
    assert torch.is_grad_enabled()


def test_a_module_that_compiles_itself_is_not_compiled(monkeypatch) -> None:
    """A second shape would make its code one of shapes that vary, with other bits."""
    shapes = []

    def backend(graph, inputs):
        shapes.append(inputs)
        return graph.forward

    compiled = torch.compile(torch.tanh, backend=backend)
    monkeypatch.setattr("tests.model.own_modules.compiled", compiled, raising=False)
    assert find_leak(model(activation_type=f"{OWN}:compiled"), 128) is None
    assert shapes == []
    compiled(torch.ones(2))
    assert len(shapes) == 1
