"""Names in state dicts: wrappers' prefixes, block groups, and layouts of older OLMo checkpoints."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TypeVar

from ablate.model.config import ModelConfig

__all__ = ["clean_name", "grouped_name", "make_state_dict_compatible", "ungrouped_name"]

T = TypeVar("T")

_WRAPPERS = re.compile(r"(?:_fsdp_wrapped_module|_checkpoint_wrapped_module|_orig_mod)\.")
_GROUPED = re.compile(r"transformer\.block_groups\.(\d+)\.(\d+)(?=\.|$)")
_PLAIN = re.compile(r"transformer\.blocks\.(\d+)(?=\.|$)")
_SHARED_NORM = re.compile(r"^(transformer\.(?:.*\.)?)norm\.(weight|bias)$")


def clean_name(name: str) -> str:
    """`name` without what FSDP, DDP, torch.compile and checkpoint wrappers put into it."""
    return _WRAPPERS.sub("", name).removeprefix("module.")


def ungrouped_name(name: str, group_size: int) -> str:
    """`transformer.block_groups.G.J…` as `transformer.blocks.N…`."""
    return _GROUPED.sub(lambda m: f"transformer.blocks.{int(m[1]) * group_size + int(m[2])}", name)


def grouped_name(name: str, group_size: int) -> str:
    """`transformer.blocks.N…` as `transformer.block_groups.G.J…`, where groups hold several."""
    if group_size == 1:
        return name

    def place(match: re.Match[str]) -> str:
        group, index = divmod(int(match[1]), group_size)
        return f"transformer.block_groups.{group}.{index}"

    return _PLAIN.sub(place, name)


def make_state_dict_compatible(
    state_dict: Mapping[str, T], config: ModelConfig
) -> tuple[dict[str, T], dict[str, set[str]]]:
    """A state dict of any layout OLMo ever wrote, under the names that `config` expects.

    Drops wrappers' prefixes; gives a norm that older sequential blocks shared (`….norm.weight`)
    to both attn_norm and ff_norm; regroups blocks for another block_group_size. Tensors are
    passed on as they are.

    Returns:
        The new state dict, and the map from each old key to its new keys.
    """
    held = 1 + max((int(m[2]) for key in state_dict if (m := _GROUPED.search(key))), default=0)
    renamed: dict[str, T] = {}
    keys: dict[str, set[str]] = {}
    for old, value in state_dict.items():
        name = grouped_name(ungrouped_name(clean_name(old), held), config.block_group_size)
        shared = _SHARED_NORM.match(name) if config.block_type == "sequential" else None
        names = (
            [f"{shared[1]}{norm}.{shared[2]}" for norm in ("attn_norm", "ff_norm")]
            if shared
            else [name]
        )
        keys[old] = set(names)
        renamed.update(dict.fromkeys(names, value))
    return renamed, keys
