"""What a run ignores."""

from __future__ import annotations

import dataclasses

import pytest

from ablate.config.schema import TrialConfig
from ablate.model.config import ModelConfig
from ablate.plan import effective_fingerprint, resolve, unread


def config(**sections):
    return resolve(sections)


@pytest.mark.parametrize(
    "model",
    [
        {},
        {"rope": True},
        {"alibi": True},
        {"position": "relative"},
        {
            "attention_layer_norm": True,
            "n_kv_heads": 4,
            "sliding_window": 16,
            "init_fn": "mitchell",
        },
    ],
)
def test_an_unread_field_does_not_change_the_effective_configuration(model) -> None:
    base = config(model=model)
    for field, other in {
        "alibi_bias_max": 4.0,
        "rope_theta": 500,
        "rope_full_precision": False,
        "relative_num_buckets": 16,
        "relative_max_distance": 256,
        "attention_layer_norm_with_affine": False,
        "init_std": 0.5,
        "yarn_beta_fast": 16.0,
        "sliding_window_full_last": False,
    }.items():
        changed = config(model={**model, field: other})
        ignored = f"model.{field}" in unread(changed) and f"model.{field}" in unread(base)
        assert (effective_fingerprint(base) == effective_fingerprint(changed)) == ignored, field


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"n_kv_heads": 12}, {}),
        ({"multi_query_attention": True}, {"n_kv_heads": 1}),
        ({"mlp_hidden_size": 3072}, {"mlp_ratio": 4}),
        ({"embedding_size": None}, {"embedding_size": 50257}),
        ({"position": "learned"}, {}),
        ({"bias_for_layer_norm": True}, {"include_bias": True}),
        ({"sliding_window": 1024}, {}),
        ({"sliding_window_pattern": [64, -1]}, {"sliding_window_pattern": [64, -1, 64, -1]}),
        ({"init_fn": "mitchell"}, {"init_fn": "mitchell", "init_cutoff_factor": 3.0}),
        ({"flash_attention": True}, {"attention_backend": "flash"}),
    ],
)
def test_two_spellings_of_one_meaning_are_the_same(one, other) -> None:
    assert effective_fingerprint(config(model=one)) == effective_fingerprint(config(model=other))


def test_every_field_that_is_called_unread_exists() -> None:
    fields = {f"model.{f.name}" for f in dataclasses.fields(ModelConfig)}
    for f in dataclasses.fields(TrialConfig):
        fields.add(f.name)
        sub = getattr(TrialConfig(), f.name)
        if dataclasses.is_dataclass(sub):
            fields |= {f"{f.name}.{g.name}" for g in dataclasses.fields(sub)}
    for model in (
        {},
        {"rope": True},
        {"alibi": True},
        {"init_fn": "full_megatron", "emb_init_std": 0.1},
    ):
        for clip in ("none", "norm", "ratio", "value"):
            for schedule in ("constant", "wsd", "exponential"):
                tree = config(
                    model=model,
                    clip={"name": clip},
                    schedule={"name": schedule},
                    optim={"name": "lion"},
                )
                assert unread(tree).keys() <= fields | {"sweep"}
