"""The composer does what Hydra does, only faster, and says what is wrong in one paragraph."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_module
from omegaconf import OmegaConf

from ablate.config.compose import Composer
from ablate.config.hydra_door import register
from ablate.config.options import CONF
from ablate.config.schema import TrialConfig
from ablate.errors import ConfigError
from ablate.model.config import ModelConfig
from ablate.plan.sweep import SweepConfig

COMPOSER = Composer()
OPTIONS = [(g, o) for g in COMPOSER.groups() if g != "sweep" for o in COMPOSER.choices(g)]


def hydra(overrides: list[str], cwd: Path | None = None) -> Any:
    """What Hydra itself makes of the overrides; half a second."""
    register(cwd)
    with initialize_config_module("ablate.conf", version_base="1.3"):
        return OmegaConf.to_container(compose("train", overrides), resolve=True)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A user's folder with options and sweeps of their own."""

    def put(name: str, text: str) -> None:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    put("conf/train.yaml", "seed: 99\n")
    put("conf/position/mine.yaml", "# @package _global_\nmodel: {rope: true, rope_theta: 77}\n")
    put("conf/position/rope.yaml", "# @package _global_\nmodel: {rope: true, rope_theta: 42}\n")
    put("conf/optim/hot.yaml", "lr: 3e-2\n")
    put("conf/model/wide.yaml", "defaults: [olmo2, _self_]\nd_model: 960\n")
    put("conf/model/own/a.yaml", "defaults: [own/b, gpt2]\nd_model: 24\nn_layers: 3\n")
    put("conf/model/own/b.yaml", "d_model: 48\nn_heads: 3\n")
    put("conf/model/bare.yaml", "d_model: 36\n")
    put("conf/model/dressed.yaml", "# @package _global_\ndefaults: [bare]\nmodel: {n_layers: 5}\n")
    put(
        "conf/recipe/mine.yaml",
        "# @package _global_\ndefaults: [{override /position: alibi}]\noptim: {lr: 0.5}\n",
    )
    put(
        "conf/position/linked.yaml",
        "# @package _global_\nmodel:\n  rope: true\n  rope_theta: ${model.d_model}\n",
    )
    put(
        "sweeps/own.yaml",
        "# @package _global_\nsweep: {question: q, seeds: 5}\ntrain: {steps: 3}\n",
    )
    return tmp_path


def test_every_option_composes_as_in_hydra() -> None:
    options = {g: COMPOSER.choices(g) for g in dict(OPTIONS)}
    for i in range(max(map(len, options.values()))):
        chosen = [f"{g}={names[i % len(names)]}" for g, names in options.items()]
        assert COMPOSER.compose(chosen) == hydra(chosen), chosen


def test_random_combinations_compose_as_in_hydra() -> None:
    draw = random.Random(0)
    values = [
        "seed=3",
        "optim.lr=1e-2",
        "model.rope_theta=5",
        "+extra.a.b=1",
        "++model.d_model=4",
        "~track.tags",
    ]
    values += [
        "train={steps: 5, device: cpu}",
        "optim.betas=[0.8,0.9]",
        "optim.betas.1=0.5",
        "study=x",
        "~optim.eps",
    ]
    values += [
        "+model.sliding_window_pattern=[1,-1]",
        "data.path='a b'",
        "schedule.warmup=5%",
        "+sweep.factors.a=[x]",
    ]
    for _ in range(10):
        chosen = [f"{g}={o}" for g, o in draw.sample(OPTIONS, 3)] + draw.sample(values, 6)
        draw.shuffle(chosen)
        assert COMPOSER.compose(chosen) == hydra(chosen), chosen


@pytest.mark.parametrize(
    "overrides",
    [
        ["position=mine"], ["position=rope"], ["optim=hot"], ["model=wide", "size=tiny"],
        ["model=own/a"], ["model=dressed"],
        ["+recipe=mine"], ["+recipe=mine", "position=rope"], ["position=linked"], ["sweep=own"],
        ["model.rope_theta=${train.steps}"], ["~data"], ["~data=kjv"],
        ["position=rope", "position=alibi"],
        ["sweep=own", "sweep.seeds=2"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_the_users_own_files_compose_as_in_hydra(project: Path, overrides: list[str]) -> None:
    assert Composer(project).compose(overrides) == hydra(overrides, project)


@pytest.mark.parametrize(
    "override",
    [
        "postion=rope", "position=ropee", "position=1", "position=true", "model.d_modle=1",
        "d_model=1", "foo.bar=1",
        "foo bar", "seed=1,2", "seed = 1", "optim.betas=[0.9", "data.path=a(b",
        "+model.d_model=3", "++position=rope",
        "~nothing", "~model.nothing", "~data=asv", "~model.d_model=3", "model.rope.x=1",
        "model={x: 1}", "foo/bar=1",
        "recipe=mine", "+data=asv", "optim.betas.7=1", "+position=alibi", "model@a=gpt2",
        "position=", "=3", "",
    ],
)  # fmt: skip
def test_what_hydra_refuses_is_refused_in_one_paragraph(project: Path, override: str) -> None:
    with pytest.raises(Exception):  # noqa: B017
        hydra([override], project)
    with pytest.raises(ConfigError) as caught:
        Composer(project).compose([override])
    assert "\n" not in str(caught.value)
    assert str(caught.value).rstrip().endswith((".", "?", "!"))


@pytest.mark.parametrize(
    ("override", "hint"),
    [
        ("postion=rope", "position"), ("position=ropee", "rope"), ("model.d_modle=1", "d_model"),
        ("d_model=1", "model.d_model"), ("tain.steps=1", "train"), ("model.lr=1", "optim.lr"),
        ("sweep.sedes=3", "seeds"), ("qk_norm=true", "on"), ("recipe=mine", "+recipe=mine"),
        ("a b", "key=value"),
        ("seed=1,2", "train -m"), ("hydra.job.name=x", "train -m"), ("data.path=a(b", "Quote"),
    ],
)  # fmt: skip
def test_a_mistake_is_answered_with_what_was_meant(project: Path, override: str, hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Composer(project).compose([override])
    assert hint in caught.value.remedy


def test_broken_files_are_named(project: Path) -> None:
    for text in ("model: [", "just text", "model: {rope: true, rope: false}"):
        (project / "conf/position/mine.yaml").write_text(text)
        with pytest.raises(ConfigError, match=r"mine\.yaml"):
            Composer(project).compose(["position=mine"])
    (project / "conf/position/mine.yaml").write_text("defaults: [mine]")
    with pytest.raises(ConfigError, match="itself"):
        Composer(project).compose(["position=mine"])


def test_two_options_of_one_group_are_refused_where_hydra_merges_them() -> None:
    with pytest.raises(ConfigError, match="name of an option"):
        COMPOSER.compose(["position=[rope,alibi]"])


def test_null_takes_an_option_back() -> None:
    assert COMPOSER.compose(["position=rope", "position=null"]) == COMPOSER.compose([])
    assert COMPOSER.compose(["data=null"])["model"]["vocab_size"] == 50257


def test_a_primary_configuration_of_the_users_is_left_alone(project: Path) -> None:
    assert Composer(project).compose([])["seed"] == 0


def test_groups_and_choices_include_the_users(project: Path) -> None:
    composer = Composer(project)
    assert {"recipe", "position", "sweep"} <= set(composer.groups())
    assert "own" in composer.choices("sweep")
    assert {"mine", "rope", "alibi"} <= set(composer.choices("position"))
    with pytest.raises(ConfigError, match="position"):
        composer.choices("postion")


def test_touched_names_exactly_what_an_override_changes() -> None:
    for group, option in OPTIONS:
        override = f"{group}={option}"
        touched = COMPOSER.touched(override)
        changed = _changed(COMPOSER.compose([f"{group}=null"]), COMPOSER.compose([override]))
        assert changed <= touched, override
        assert touched, override
    assert COMPOSER.touched("model.rope=true") == {"model.rope"}
    assert COMPOSER.touched("train={steps: 1, device: cpu}") == {"train.steps", "train.device"}
    assert COMPOSER.touched("position=null") == set()


def _changed(a: dict[str, Any], b: dict[str, Any], prefix: str = "") -> set[str]:
    result: set[str] = set()
    for key in a.keys() | b.keys():
        x, y = a.get(key), b.get(key)
        name = f"{prefix}{key}"
        if isinstance(x, dict) and isinstance(y, dict):
            result |= _changed(x, y, f"{name}.")
        elif x != y:
            result.add(name)
    return result


def test_composed_trees_share_nothing() -> None:
    one = COMPOSER.compose(["window=pattern"])
    one["model"]["sliding_window_pattern"].append(7)
    one["optim"]["betas"].clear()
    assert COMPOSER.compose(["window=pattern"])["model"]["sliding_window_pattern"] == [
        64,
        64,
        64,
        -1,
    ]
    assert COMPOSER.compose([])["optim"]["betas"] == [0.9, 0.95]


def test_an_edited_file_is_read_again(project: Path) -> None:
    composer = Composer(project)
    assert composer.compose(["position=mine"])["model"]["rope_theta"] == 77
    (project / "conf/position/mine.yaml").write_text(
        "# @package _global_\nmodel: {rope_theta: 12345}\n"
    )
    assert composer.compose(["position=mine"])["model"]["rope_theta"] == 12345


def test_a_hundred_arms_take_a_fraction_of_a_second() -> None:
    COMPOSER.compose([])
    start = time.perf_counter()
    for i in range(100):
        COMPOSER.compose(
            ["model=olmo2", "size=tiny", "position=rope", f"seed={i}", f"optim.lr={i + 1}e-4"]
        )
    assert time.perf_counter() - start < 0.5


def test_composing_imports_neither_hydra_nor_torch() -> None:
    code = (
        "import sys; from ablate.config.compose import Composer;"
        " Composer().compose(['model=olmo2', 'size=tiny', 'optim.betas=[0.9,0.99]']);"
        " print({'hydra', 'omegaconf', 'torch', 'numpy'} & set(sys.modules))"
    )
    shown = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert shown.stdout.strip() == "set()"


# ---- conf/


def test_train_yaml_holds_every_key_with_its_default() -> None:
    tree = COMPOSER.compose(["model=null", "data=null"])
    expected = _plain(TrialConfig())
    expected["model"] = ModelConfig().to_dict()
    sweep = tree.pop("sweep")
    assert tree == expected
    assert sweep == _plain(SweepConfig(question="q")) | {"question": ""}


def _plain(value: Any) -> Any:
    if hasattr(value, "__dataclass_fields__"):
        return {k: _plain(getattr(value, k)) for k in value.__dataclass_fields__}
    return [_plain(v) for v in value] if isinstance(value, list | tuple) else value


def test_every_option_opens_with_its_package_and_says_what_it_is() -> None:
    for group, option in OPTIONS:
        first, second, *_ = (CONF / group / f"{option}.yaml").read_text().splitlines()
        assert first == "# @package _global_", (group, option)
        assert second.startswith("# "), (group, option)
        assert second.endswith((".", "...")), (group, option)


def test_every_option_is_a_legal_configuration() -> None:
    for group, option in OPTIONS:
        tree = COMPOSER.compose([f"{group}={option}"])
        if (group, option) == ("data", "tokens"):
            tree["data"]["path"] = "tokens.npy"
        TrialConfig.from_mapping(tree)
        ModelConfig.from_mapping(tree["model"])


def test_toggle_groups_stand_at_null() -> None:
    chosen = {g: o for g, o in COMPOSER._defaults.items() if o is not None}
    assert chosen == {"model": "gpt2", "data": "kjv"}
    assert set(COMPOSER._defaults) == {
        p.name for p in CONF.iterdir() if p.is_dir() and not p.name.startswith("__")
    }


def test_options_of_a_group_set_the_same_idea() -> None:
    """A level must not depend on the preset below it: what tells two options apart, both set."""
    unlike = {"model", "data", "position", "optim", "schedule", "track"}
    adds = {"noisy", "noisy_before", "noisy_annealed", "segmented"}  # to whichever norm it is
    sets = [(g, COMPOSER.choices(g)) for g in {g for g, _ in OPTIONS} - unlike - {"norm"}]
    norms = set(COMPOSER.choices("norm"))
    for group, names in [*sets, ("norm", sorted(norms - adds)), ("norm", sorted(adds))]:
        common = set.intersection(*(COMPOSER.touched(f"{group}={o}") for o in names))
        for option in names:
            extra = COMPOSER.touched(f"{group}={option}") - common
            if option == "segmented":  # what it divides must be there
                extra -= {"model.layer_norm_with_affine"}
            assert group in ("clip", "precision") or not extra, (group, option, extra)
