"""The presets have the sizes of the published models."""

from __future__ import annotations

import pytest

from ablate.config.compose import Composer
from ablate.model import OLMo, count
from ablate.model.config import ModelConfig

COMPOSER = Composer()

PUBLISHED = {  # parameters: all, without the embedding, without embedding and head
    "gpt2": (124_439_808, 85_056_000, 85_056_000),
    "olmo1-1b": (1_176_764_416, 1_073_741_824, 1_073_741_824),
    "olmo1-7b": (6_888_095_744, 6_682_050_560, 6_476_005_376),
    "olmo1-7b-0724": (6_888_095_744, 6_682_050_560, 6_476_005_376),
    "olmo2-1b": (1_484_916_736, 1_279_395_840, 1_073_874_944),
    "olmo2-7b": (7_298_617_344, 6_887_575_552, 6_476_533_760),
    "olmo2-13b": (13_716_198_400, 13_202_396_160, 12_688_593_920),
    "olmo2-32b": (32_234_279_936, 31_720_477_696, 31_206_675_456),
    "olmo3-7b": (7_298_617_344, 6_887_575_552, 6_476_533_760),
    "olmo3-32b": (32_234_279_936, 31_720_477_696, 31_206_675_456),
    "olmo-20m": (34_148_608, None, None),
    "olmo-60m": (85_074_432, None, None),
    "olmo-150m": (190_532_352, None, None),
    "olmo-300m": (371_491_840, None, None),
    "olmo-700m": (758_564_352, None, None),
}


def preset(name: str) -> ModelConfig:
    """With the preset's own vocabulary."""
    return ModelConfig.from_mapping(COMPOSER.compose([f"model={name}", "data=null"])["model"])


@pytest.mark.parametrize("name", PUBLISHED)
def test_counted_as_published(name: str) -> None:
    everything, without_embedding, without_head = PUBLISHED[name]
    config = preset(name)
    assert count.parameters(config) == everything
    rest = count.parameters(config, include_embedding=False)
    if without_embedding is not None:
        assert rest == without_embedding
        head = 0 if config.weight_tying else config.embedding_rows * config.d_model
        assert rest - head == without_head


@pytest.mark.parametrize("name", PUBLISHED)
def test_built_as_published(name: str) -> None:
    model = OLMo(preset(name).replace(init_device="meta"))
    assert model.num_params() == PUBLISHED[name][0]


@pytest.mark.parametrize(
    "name", [n for n in PUBLISHED if not n.startswith("olmo3") and n != "gpt2"]
)
def test_upstream_builds_the_same_tensors(name: str) -> None:
    """OLMo 3's windows and GPT-2's tanh GELU are beyond upstream; every other preset is not."""
    from olmo.config import ModelConfig as UpstreamConfig
    from olmo.model import OLMo as Upstream

    config = preset(name).replace(init_device="meta", n_layers=2)
    fields = {k: v for k, v in config.to_dict().items() if k in UpstreamConfig.__dataclass_fields__}
    theirs = Upstream(UpstreamConfig(**fields), init_params=False)
    ours = OLMo(config)
    assert {k: v.shape for k, v in ours.state_dict().items()} == {
        k: v.shape for k, v in theirs.state_dict().items()
    }


def test_every_preset_is_listed_here() -> None:
    styles = {"olmo1", "olmo2", "llama"}
    assert set(COMPOSER.choices("model")) == set(PUBLISHED) | styles


def test_every_preset_shrinks_to_every_size() -> None:
    for model in COMPOSER.choices("model"):
        sizes = []
        for size in ("tiny", "1m", "4m", "10m", "20m", "60m", "150m", "300m", "700m", "1b", "7b"):
            tree = COMPOSER.compose([f"model={model}", f"size={size}"])
            sizes.append(count.parameters(ModelConfig.from_mapping(tree["model"])))
        assert sizes == sorted(sizes), model
        assert 5e4 < sizes[0] < 2.5e5, model
    assert set(COMPOSER.choices("size")) == {
        "tiny", "1m", "4m", "10m", "20m", "60m", "150m", "300m", "700m", "1b", "7b",
    }  # fmt: skip


@pytest.mark.parametrize(("size", "millions"), [("1m", 1), ("4m", 4), ("10m", 10), ("20m", 20)])
def test_laptop_sizes_are_what_they_say(size: str, millions: float) -> None:
    for model in ("gpt2", "olmo2"):
        tree = COMPOSER.compose([f"model={model}", f"size={size}"])
        got = count.parameters(ModelConfig.from_mapping(tree["model"])) / 1e6
        assert 0.75 * millions < got < 1.5 * millions, (model, got)


def test_style_presets_have_the_size_of_gpt2() -> None:
    for name in ("olmo1", "olmo2", "llama"):
        config = preset(name)
        assert (config.d_model, config.n_layers, config.n_heads, config.max_sequence_length) == (
            768,
            12,
            12,
            1024,
        )
