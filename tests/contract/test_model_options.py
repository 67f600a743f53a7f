"""Every option that shapes the model, found by listing conf/: a new YAML is covered at once.

Each composes, builds on the meta device, has the parameters that are declared, is causal, has
finite gradients, is deterministic, differs from a baseline, and survives saving and loading.
"""

from __future__ import annotations

import functools
import io
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from ablate.config.compose import Composer
from ablate.errors import ConfigError
from ablate.model import OLMo, count
from ablate.model.causality import find_leak, shake
from ablate.model.config import ModelConfig

COMPOSER = Composer()
SECTIONS = {
    group: {
        key.split(".")[0]
        for o in COMPOSER.choices(group)
        for key in COMPOSER.touched(f"{group}={o}")
    }
    for group in COMPOSER.groups()
    if group != "sweep"
}
PRESETS = {"model", "size", "data"}
"""Groups that set the model's shape or vocabulary as a whole."""
GROUPS = sorted(g for g, sections in SECTIONS.items() if sections == {"model"} and g not in PRESETS)
IMPLEMENTATIONS = {"attention", "block", "feed_forward"}
"""Groups whose options compute one function by different roads."""
TOKENS = 96

OPTIONS = [(g, o) for g in GROUPS for o in COMPOSER.choices(g)]


def over(options: list[tuple[str, str]]) -> pytest.MarkDecorator:
    """A test of each of these options, named `group=option`."""
    return pytest.mark.parametrize(("group", "option"), options, ids=map("=".join, options))


each_option = over([*OPTIONS, *(("model", o) for o in COMPOSER.choices("model"))])


@dataclass(frozen=True)
class Arm:
    """A small model of an option on a baseline that the option changes."""

    baseline: ModelConfig
    config: ModelConfig


def compose(*overrides: str) -> ModelConfig:
    return ModelConfig.from_mapping(COMPOSER.compose(["size=tiny", *overrides])["model"])


@functools.cache
def arm(group: str, option: str) -> Arm:
    """On the first of these baselines that the option changes: GPT-2, OLMo 2, a sibling option."""
    siblings = [[f"{group}={o}"] for o in COMPOSER.choices(group) if o != option]
    for base in [["model=gpt2"], ["model=olmo2"], *siblings]:
        baseline, config = compose(*base), compose(*base, f"{group}={option}")
        if config != baseline:
            return Arm(baseline, config)
    raise AssertionError(f"{group}={option} changes neither GPT-2 nor OLMo 2 nor any sibling")


def build(config: ModelConfig, seed: int = 0) -> OLMo:
    try:
        return OLMo(config, seed=seed).eval()
    except ConfigError as error:
        if "flash" in error.field and not torch.cuda.is_available():
            pytest.skip(str(error))
        raise


def tokens(config: ModelConfig) -> Tensor:
    return torch.randint(
        0, config.vocab_size, (2, TOKENS), generator=torch.Generator().manual_seed(7)
    )


def distance(a: Tensor, b: Tensor) -> float:
    return float(((a - b).abs().max() / b.abs().max()).detach())


def test_the_groups_are_found() -> None:
    assert {"position", "norm", "placement", "qk_norm", "bias", "tying", "init", "kv_heads"} <= set(
        GROUPS
    )
    assert len(OPTIONS) >= 50


@each_option
def test_declared_parameters_are_the_built_ones(group: str, option: str) -> None:
    pre = ["placement=pre"] if option == "llama" else []  # its block refuses OLMo 2's norm_after
    for config in (arm(group, option).config, compose("model=olmo2", *pre, f"{group}={option}")):
        model = OLMo(config.replace(init_device="meta"))
        assert all(p.is_meta for p in model.parameters())
        for everything in (True, False):
            assert model.num_params(everything) == count.parameters(config, everything)


@pytest.mark.parametrize("size", COMPOSER.choices("size"))
def test_sizes_build_on_the_meta_device(size: str) -> None:
    tree = COMPOSER.compose([f"size={size}"])
    config = ModelConfig.from_mapping(tree["model"])
    assert OLMo(config.replace(init_device="meta")).num_params() == count.parameters(config)


@each_option
def test_no_logit_sees_a_later_token(group: str, option: str) -> None:
    config = arm(group, option).config
    model = shake(build(config))
    ids = tokens(config)
    embedded = model.transformer["wte"](ids).detach().requires_grad_()
    at = TOKENS // 2
    model(ids, input_embeddings=embedded).logits[:, at].square().sum().backward()
    assert embedded.grad is not None
    seen = embedded.grad.abs().sum(-1)
    assert (seen[:, at + 1 :] == 0).all()
    assert (seen[:, at] > 0).all()
    assert (seen[:, : at + 1] > 0).sum() > at / 4
    assert find_leak(config, TOKENS) is None, "two tests of one thing agree"


@each_option
def test_gradients_are_finite_and_reach_every_parameter(group: str, option: str) -> None:
    config = arm(group, option).config
    model = build(config).train()
    ids = tokens(config)
    torch.manual_seed(0)
    logits = model(ids).logits[:, :-1].flatten(0, 1)
    torch.nn.functional.cross_entropy(logits, ids[:, 1:].flatten()).backward()
    for name, p in model.named_parameters():
        assert p.grad is not None, name
        assert p.grad.isfinite().all(), name
        assert p.grad.any(), name


@each_option
def test_nothing_of_the_weights_is_kept_from_pass_to_pass(group: str, option: str) -> None:
    """As between two validations, whose passes want no gradients."""
    config = arm(group, option).config
    model, other = build(config), build(config)
    ids = tokens(config)
    with torch.no_grad():
        first = model(ids).logits
    shake(model)
    other.load_state_dict(model.state_dict())
    with torch.no_grad():
        again = model(ids).logits
        assert torch.equal(again, other(ids).logits)
    assert not torch.equal(first, again)


@each_option
def test_equal_seeds_give_equal_bits(group: str, option: str) -> None:
    config = arm(group, option).config
    one, two, other = build(config), build(config), build(config, seed=1)
    ids = tokens(config)
    assert torch.equal(one(ids).logits, two(ids).logits)
    assert not torch.equal(one(ids).logits, other(ids).logits)
    torch.manual_seed(3)
    first = one.train()(ids).logits
    torch.manual_seed(3)
    assert torch.equal(first, two.train()(ids).logits)


@each_option
def test_a_saved_model_is_the_same_model(group: str, option: str) -> None:
    config = arm(group, option).config
    model, file = shake(build(config)), io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    other = build(config, seed=1)
    other.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(model(tokens(config)).logits, other(tokens(config)).logits)


@over([o for o in OPTIONS if o[0] not in IMPLEMENTATIONS])
def test_pain_32_every_idea_changes_the_model(group: str, option: str) -> None:
    """Its function on shaken weights, or its initial weights, or what training computes."""
    found = arm(group, option)
    ids = tokens(found.config)
    ours, theirs = build(found.config), build(found.baseline)
    initial, other = ours.state_dict(), theirs.state_dict()
    initialised = any(n in other and not torch.equal(p, other[n]) for n, p in initial.items())
    shake(ours), shake(theirs)
    differences = [distance(ours(ids).logits, theirs(ids).logits)]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        differences.append(distance(ours(ids).logits.float(), theirs(ids).logits.float()))
    torch.manual_seed(0)
    training = ours.train()(ids).logits
    torch.manual_seed(0)
    differences.append(distance(training, theirs.train()(ids).logits))
    assert initialised or max(differences) > 1e-4, differences


@over([o for o in OPTIONS if o[0] in IMPLEMENTATIONS])
def test_every_implementation_computes_the_same_function(group: str, option: str) -> None:
    found = arm(group, option)
    ours, theirs = build(found.config), shake(build(found.baseline))
    state = theirs.state_dict()
    ours.load_state_dict(split(state) if found.config.block_type == "llama" else fuse(state))
    ids = tokens(found.config)
    assert distance(ours(ids).logits, theirs(ids).logits) < 1e-5


def split(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """A fused query/key/value projection as three, where there is one (equal heads)."""
    result: dict[str, Tensor] = {}
    for name, value in state.items():
        if ".att_proj." not in name:
            result[name] = value
            continue
        for part, piece in zip("qkv", value.chunk(3), strict=True):
            result[name.replace("att_proj", f"{part}_proj")] = piece
    return result


def fuse(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """The reverse."""
    result = {n: v for n, v in state.items() if not any(f".{p}_proj." in n for p in "qkv")}
    for name in state:
        if ".q_proj." in name:
            pieces = [state[name.replace("q_proj", f"{p}_proj")] for p in "qkv"]
            result[name.replace("q_proj", "att_proj")] = torch.cat(pieces)
    return result
