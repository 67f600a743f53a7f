"""The foundation layer's mechanisms on every base model, at its own size."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from ablate.config.compose import Composer
from ablate.model import OLMo, count
from ablate.model.config import ModelConfig
from ablate.plan import effective_fingerprint, resolve

COMPOSER = Composer()
OPTIONS = [
    "position=hybrid",
    "position=hybrid_as_published",
    "norm=noisy",
    "norm=noisy_before",
    "norm=noisy_annealed",
    "norm=segmented",
    "width=tapered",
    "width=tapered_flops",
    "width=tapered_reverse",
    "clip=percentile",
    "clip=percentile_history",
    "clip=agc",
    "clip=zclip",
    "precision=fp16",
    "precision=fp16_naive",
    "precision=fp16_protected",
    "schedule.foundation_layers=1",
    "feed_forward=chunked",
    "unembedding=chunked",
    "batching=dynamic",
    "cache=dynamic",
    "cache=preheated",
]


@functools.cache
def base_of(model: str) -> dict[str, Any]:
    return resolve(COMPOSER.compose([f"model={model}"]))


@functools.cache
def fingerprint_of(model: str) -> str:
    return effective_fingerprint(base_of(model))


@pytest.mark.parametrize("model", COMPOSER.choices("model"))
@pytest.mark.parametrize("option", OPTIONS)
def test_it_composes_with_every_base_model_and_differs_from_it(model: str, option: str) -> None:
    base = base_of(model)
    affine = ["model.layer_norm_with_affine=true"] if option == "norm=segmented" else []
    arm = resolve(COMPOSER.compose([f"model={model}", option, *affine]))
    assert effective_fingerprint(arm) != fingerprint_of(model)
    config = ModelConfig(**{**arm["model"], "init_device": "meta"})
    if arm["model"] == base["model"]:
        return
    built = OLMo(config, init_params=False)
    assert built.num_params() == count.parameters(config)
    if option.startswith("width="):
        uniform = ModelConfig(**base["model"])
        length = config.max_sequence_length
        costs = {
            "width=tapered_flops": lambda c: count.flops_per_token(c, length),
        }.get(option, count.parameters)
        assert abs(costs(config) / costs(uniform) - 1) <= 0.01
