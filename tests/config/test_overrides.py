"""Overrides and YAML are read as Hydra and OmegaConf read them, by a shorter road."""

from __future__ import annotations

import math
import shlex
from pathlib import Path
from typing import Any

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from hypothesis import example, given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from ablate.config.options import CONF, read_yaml
from ablate.config.overrides import parse_override
from ablate.errors import ConfigError

PARSER = OverridesParser.create()

words = st.text("abzE_-0159.+:/$ntruefalsinN ", max_size=8)
values = st.one_of(
    words,
    st.lists(words, max_size=3).map(lambda items: "[" + ",".join(items) + "]"),
    st.sampled_from(
        ["true", "False", "NULL", "null", "nan", "-inf", "1_000", "1e-3", "1.", ".5", "007", "0x1"]
    ),
)
keys = st.sampled_from(
    ["a", "a.b", "a.0", "a/b", "a_b.c-d", "a.b.c", "1a", "a..b", "a/", ".a", "a.01", "a b", ""]
)
lines = st.builds("{}{}={}".format, st.sampled_from(["", "+", "++", "~", "~+", "-"]), keys, values)


@settings(max_examples=300)
@given(lines)
@example("a=1e5")
@example("a=[1e-3,2e-3]")
@example("~a")
@example("a=1.e5")
@example("a=1_0.5_0")
@example("a=package.module:Class")
def test_read_as_hydra_reads(line: str) -> None:
    try:
        theirs = PARSER.parse_override(line)
    except HydraException:
        theirs = None
    if theirs is None or theirs.is_sweep_override() or theirs.package is not None:
        with pytest.raises(ConfigError):
            parse_override(line)
        return
    ours = parse_override(line)
    assert ours.key == theirs.key_or_group
    assert same(ours.value, theirs.value())
    kind = (theirs.is_delete(), theirs.is_add(), theirs.is_force_add())
    assert kind == (ours.kind == "delete", ours.kind == "add", ours.kind == "force")


def same(a: Any, b: Any) -> bool:
    """Equal in value and type; nan is nan."""
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(same, a, b))
    both_nan = isinstance(a, float) and isinstance(b, float) and math.isnan(a) and math.isnan(b)
    return type(a) is type(b) and (a == b or both_nan)


def test_yaml_is_read_as_omegaconf_reads(tmp_path: Path) -> None:
    path = tmp_path / "numbers.yaml"
    spellings = [
        "1", "1.0", "1.", ".5", "1e-3", "1E5", "1.5e3", "-1e-3", "+2", "1_000", "1_0.5", "007",
        "0x1f", "0o7", "0b1", "1:30", "1:30.5", ".inf", "-.inf", ".nan", "nan", "inf", "on",
        "off", "yes", "No", "true", "FALSE", "null", "~", "2020-01-01", "1e", "1.2.3", "5%",
        "2M", "'1'", '"x"', "3e+4", ".5e3", ".5e-3", "1e5.0", "NULL",
    ]  # fmt: skip
    path.write_text("".join(f"k{i}: {text}\n" for i, text in enumerate(spellings)))
    ours, theirs = read_yaml(path, "x")[1], OmegaConf.to_container(OmegaConf.load(path))
    assert isinstance(theirs, dict)
    assert ours.keys() == theirs.keys()
    wrong = [spellings[int(k[1:])] for k in ours if not same(ours[k], theirs[k])]
    assert wrong == []


def test_every_shipped_file_is_read_as_omegaconf_reads() -> None:
    for path in CONF.rglob("*.yaml"):
        theirs = OmegaConf.to_container(OmegaConf.load(path))
        assert read_yaml(path, "x")[1] == theirs, path


def test_a_list_of_overrides_is_told_how_to_be_quoted():
    with pytest.raises(ConfigError, match=r"""'sweep.baseline=\["model=gpt2","size=tiny"\]'"""):
        parse_override("sweep.baseline=[model=gpt2,size=tiny]")


@pytest.mark.parametrize("text", ["mail me", 'mail -s "$STUDY $STATE" me', "echo 'it is' done"])
def test_how_a_value_is_to_be_quoted_is_what_can_be_read(text: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse_override(f"cluster.notify={text} < x")
    (typed,) = shlex.split(str(raised.value).partition("for Hydra: ")[2].removesuffix("."))
    assert parse_override(typed).value == f"{text} < x"
