"""position=hybrid: learned vectors plus sinusoids of a stated size."""

from __future__ import annotations

import pytest
import torch

from ablate.config.compose import Composer
from ablate.errors import ConfigError
from ablate.model import ModelConfig, OLMo

BASE = ["size=tiny", "dropout=none"]


def model(*overrides: str, seed: int = 0) -> OLMo:
    tree = Composer().compose([*BASE, *overrides])
    return OLMo(ModelConfig.from_mapping(tree["model"]), seed=seed).eval()


def added(built: OLMo, length: int = 64) -> torch.Tensor:
    return built.position.embed(0, length, built.transformer["wte"].weight).detach()


def test_the_learned_part_is_that_of_learned_positions_bit_for_bit() -> None:
    hybrid, learned = model("position=hybrid").state_dict(), model("position=learned").state_dict()
    assert hybrid.keys() == learned.keys()
    assert all(torch.equal(hybrid[name], learned[name]) for name in hybrid)


@pytest.mark.parametrize("init", ["normal", "llama"])
@pytest.mark.parametrize("share", [0.1, 0.5])
def test_the_sinusoids_amplitude_is_a_share_of_the_embeddings_deviation(init, share) -> None:
    built = model("position=hybrid", f"init={init}", f"model.hybrid_amplitude={share}")
    sinusoids = added(built) - built.position.weight[:64].detach()
    embedding = built.transformer["wte"].weight.detach().std()
    assert float(sinusoids.abs().max()) == pytest.approx(share * float(embedding), rel=0.02)
    alone = model("position=sinusoidal", f"init={init}")
    torch.testing.assert_close(sinusoids, share * added(alone), rtol=1e-4, atol=1e-7)


def test_as_published_the_learned_part_drowns_the_embedding() -> None:
    ours, published = model("position=hybrid"), model("position=hybrid_as_published")
    embedding = float(published.transformer["wte"].weight.detach().std())
    assert float(added(published).std()) > 40 * embedding
    assert float(added(ours).std()) < 2 * embedding
    assert float(published.position.weight.detach().std()) == pytest.approx(1.0, rel=0.05)


def test_an_input_longer_than_the_table_is_refused_by_name() -> None:
    built = model("position=hybrid", "model.max_sequence_length=16")
    ids = torch.zeros(1, 17, dtype=torch.long)
    with pytest.raises(ConfigError, match=r"max_sequence_length=16.*17 tokens"):
        built(ids)
    assert built(ids[:, :16]).logits.isfinite().all()


@pytest.mark.parametrize(
    ("override", "named"),
    [
        ("model.hybrid_amplitude=0", "hybrid_amplitude"),
        ("model.hybrid_learned_std=-1", "hybrid_learned_std"),
        ("model.rope=true", "position=hybrid"),
        ("model.alibi=true", "position=hybrid"),
    ],
)
def test_nonsense_is_refused_by_name(override: str, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        model("position=hybrid", override)
