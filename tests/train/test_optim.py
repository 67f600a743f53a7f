"""Optimisers against references, and OLMo's rule of what decays."""

from __future__ import annotations

import copy
from importlib import import_module

import pytest
import torch
from torch import nn

from ablate.config.schema import OptimConfig
from ablate.errors import ConfigError
from ablate.model import ModelConfig, OLMo
from ablate.train.optim import Lion, MuonAdamW, build_optimiser, parameter_groups


class Block(nn.Module):
    def __init__(self, d: int = 8) -> None:
        super().__init__()
        self.attn_norm = nn.LayerNorm(d)
        self.att_proj = nn.Linear(d, 3 * d)
        self.ff_out = nn.Linear(d, d)


class Own(nn.Module):
    """A norm class of the user's own, in the place of a norm."""

    def __init__(self, d: int = 8) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d))


class Model(nn.Module):
    def __init__(self, tied: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        parts: dict[str, nn.Module] = {
            "wte": nn.Embedding(11, 8),
            "wpe": nn.Embedding(5, 8),
            "ln_f": Own(),
            "blocks": nn.ModuleList([Block()]),
        }
        if not tied:
            parts["ff_out"] = nn.Linear(8, 11, bias=False)
        self.transformer = nn.ModuleDict(parts)


def decayed(**fields) -> set[str]:
    groups = parameter_groups(Model(), OptimConfig(**fields))
    everything = [n for g in groups for n, _ in g["params"]]
    assert len(everything) == len(set(everything)) == len(list(Model().named_parameters()))
    return {
        n.removeprefix("transformer.") for g in groups if g["weight_decay"] for n, _ in g["params"]
    }


MATRICES = {"blocks.0.att_proj.weight", "blocks.0.ff_out.weight", "ff_out.weight"}
BIASES = {"blocks.0.att_proj.bias", "blocks.0.ff_out.bias", "blocks.0.attn_norm.bias"}
NORMS = {"blocks.0.attn_norm.weight", "ln_f.weight"}
EMBEDDINGS = {"wte.weight", "wpe.weight"}


def test_decay_follows_olmos_rule():
    assert decayed() == MATRICES
    assert decayed(decay_embeddings=True) == MATRICES | EMBEDDINGS
    assert decayed(decay_norm_and_bias=True) == MATRICES | NORMS | BIASES


def test_decay_groups_equal_upstreams_for_upstreams_own_model():
    upstream = import_module("olmo.optim")
    from olmo.config import ModelConfig, OptimizerConfig, TrainConfig
    from olmo.model import OLMo

    small = {"d_model": 16, "n_heads": 2, "n_layers": 2, "vocab_size": 64, "embedding_size": 64}
    for tied in (False, True):
        for norm_and_bias in (False, True):
            for embeddings in (False, True):
                model = OLMo(ModelConfig(weight_tying=tied, embedding_layer_norm=True, **small))
                flags = {"decay_norm_and_bias": norm_and_bias, "decay_embeddings": embeddings}
                theirs = upstream.get_param_groups(
                    TrainConfig(optimizer=OptimizerConfig(weight_decay=0.1, **flags)), model
                )
                ours = parameter_groups(model, OptimConfig(weight_decay=0.1, **flags))
                assert {
                    n for g in theirs if g.get("weight_decay") != 0 for n in g["param_names"]
                } == {n for g in ours if g["weight_decay"] for n, _ in g["params"]}


def test_a_parameter_of_no_known_kind_is_refused_by_name():
    model = Model()
    model.transformer["blocks"][0].gate = nn.Parameter(torch.ones(3))
    with pytest.raises(ConfigError, match=r"blocks\.0\.gate"):
        parameter_groups(model, OptimConfig())


def set_gradients(parameters, step: int) -> None:
    g = torch.Generator().manual_seed(step)
    for p in parameters:
        p.grad = torch.randn(p.shape, generator=g).to(p.dtype)


def trajectory(optimiser_of, steps: int = 5) -> list[torch.Tensor]:
    g = torch.Generator().manual_seed(9)
    parameters = [nn.Parameter(torch.randn(s, generator=g)) for s in [(6, 4), (5,)]]
    optimiser = optimiser_of(parameters)
    for step in range(steps):
        set_gradients(parameters, step)
        optimiser.step()
    return [p.detach() for p in parameters]


def test_lion_equals_upstreams():
    upstream = import_module("olmo.optim")
    fields = {"lr": 1e-2, "betas": (0.9, 0.95), "weight_decay": 0.1}
    ours = trajectory(lambda p: Lion(p, **fields))
    theirs = trajectory(lambda p: upstream.LionW(p, **fields))
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-7)


def test_adamw_is_torchs_fused():
    optimiser = build_optimiser(Model(), OptimConfig(lr=1e-2, eps=1e-6, betas=(0.8, 0.9)))
    assert isinstance(optimiser, torch.optim.AdamW)
    group = optimiser.param_groups[0]
    assert (group["fused"], group["eps"], group["betas"]) == (True, 1e-6, (0.8, 0.9))


@pytest.mark.parametrize("case", ["all gradients", "some are missing", "two types", "resumed"])
def test_adamw_steps_as_torchs_does_bit_for_bit(case):
    """With rates that change and groups that differ in decay; state included."""
    ours, theirs = Model(), Model()
    for model in (ours, theirs):
        if case == "two types":
            model.transformer["ln_f"].double()
        if case == "some are missing":
            model.transformer["wpe"].weight.requires_grad_(False)
    config = OptimConfig(lr=1e-2, betas=(0.8, 0.9), weight_decay=0.3)
    a = build_optimiser(ours, config)
    groups = parameter_groups(theirs, config)
    b = torch.optim.AdamW(groups, lr=1e-2, betas=(0.8, 0.9), eps=config.eps, fused=True)
    for step in range(6):
        if case == "resumed" and step == 3:
            a = build_optimiser(ours, config)
            a.load_state_dict(copy.deepcopy(b.state_dict()))
        for model, optimiser in ((ours, a), (theirs, b)):
            set_gradients(model.parameters(), step)
            if case == "some are missing" and step != 2:
                model.transformer["wte"].weight.grad = None
            for group in optimiser.param_groups:
                group["lr"] = 1e-2 / (step + 1)
            optimiser.step()
    assert all(map(torch.equal, ours.parameters(), theirs.parameters()))
    same = zip(a.state_dict()["state"].values(), b.state_dict()["state"].values(), strict=True)
    for mine, their in same:
        assert mine.keys() == their.keys()
        assert all(torch.equal(mine[k], their[k]) for k in mine)


def test_muon_takes_the_hidden_matrices_and_adamw_the_rest():
    model = Model()
    optimiser = build_optimiser(model, OptimConfig(name="muon"))
    assert isinstance(optimiser, MuonAdamW)
    adamw, muon = optimiser.parts
    names = {id(p): n for n, p in model.named_parameters()}
    taken = {names[id(p)] for g in muon.param_groups for p in g["params"]}
    assert taken == {"transformer.blocks.0.att_proj.weight", "transformer.blocks.0.ff_out.weight"}
    rest = {names[id(p)] for g in adamw.param_groups for p in g["params"]}
    assert taken | rest == set(names.values())
    assert not taken & rest


def test_muons_update_has_the_size_of_adamws():
    """RMS 0.2 times the learning rate, up to the orthogonalisation's accuracy."""
    torch.manual_seed(0)
    model = nn.ModuleDict({"proj": nn.Linear(64, 128, bias=False)})
    before = model["proj"].weight.detach().clone()
    optimiser = build_optimiser(model, OptimConfig(name="muon", lr=1e-2, weight_decay=0.0))
    set_gradients(model.parameters(), 1)
    optimiser.step()
    update = (model["proj"].weight.detach() - before).square().mean().sqrt()
    assert float(update) == pytest.approx(0.2 * 1e-2, rel=0.2)


@pytest.mark.parametrize("name", ["adamw", "lion", "muon"])
def test_an_optimiser_continues_from_its_saved_state_bit_for_bit(name):
    whole, part = Model(), Model()
    config = OptimConfig(name=name, lr=1e-2)
    a, b = build_optimiser(whole, config), build_optimiser(part, config)
    for step in range(6):
        if step == 3:
            saved = b.state_dict()
            b = build_optimiser(part, config)
            b.load_state_dict(saved)
        for model, optimiser in ((whole, a), (part, b)):
            set_gradients(model.parameters(), step)
            optimiser.step()
    assert all(map(torch.equal, whole.parameters(), part.parameters()))


def test_a_users_own_optimiser_gets_the_fields_that_it_knows():
    optimiser = build_optimiser(Model(), OptimConfig(name="torch.optim:SGD", lr=0.5, momentum=0.3))
    assert isinstance(optimiser, torch.optim.SGD)
    assert optimiser.param_groups[0]["momentum"] == 0.3
    assert [g["weight_decay"] for g in optimiser.param_groups] == [0.1, 0.0]


def test_an_unknown_optimiser_is_refused_by_name():
    with pytest.raises(ConfigError, match=r"optim\.name=torch\.optim:Adamm"):
        build_optimiser(Model(), OptimConfig(name="torch.optim:Adamm"))


def test_the_norms_behind_a_sublayer_are_norms_too():
    values = {"d_model": 16, "n_heads": 2, "n_layers": 1, "peri_norm": True}
    model = OLMo(ModelConfig.from_mapping(values | {"layer_norm_type": "rms"}))
    groups = parameter_groups(model, OptimConfig())
    assert not [n for g in groups if g["weight_decay"] for n, _ in g["params"] if "norm" in n]
