"""Configuration trees as plain dictionaries: merging and overrides by OmegaConf's rules."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ablate.config.overrides import Override
from ablate.config.typed import closest
from ablate.errors import ConfigError

__all__ = ["apply", "copy_tree", "leaves", "merge"]

MISSING = "???"


def copy_tree(value: Any) -> Any:
    """A deep copy of dictionaries and lists; the leaves are immutable."""
    if isinstance(value, dict):
        return {k: copy_tree(v) for k, v in value.items()}
    return [copy_tree(v) for v in value] if isinstance(value, list) else value


def merge(tree: dict[str, Any], values: dict[str, Any]) -> None:
    """Sets `values` in `tree`: sections are merged, lists and leaves replaced."""
    for key, value in values.items():
        old = tree.get(key)
        if isinstance(value, dict) and isinstance(old, dict):
            merge(old, value)
        elif value != MISSING or key not in tree:
            tree[key] = copy_tree(value)


def leaves(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted key, value) of every leaf; lists are leaves, empty sections are not."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from leaves(inner, f"{prefix}.{key}" if prefix else str(key))
    else:
        yield prefix, value


def apply(tree: dict[str, Any], override: Override) -> None:
    """Applies the override of a value to `tree`.

    Raises:
        ConfigError: for a key that does not exist (or, with `+`, does), with what was meant.
    """
    parts = override.key.split(".")
    holder, last = _descend(tree, parts, override), parts[-1]
    if override.kind == "delete":
        _delete(holder, last, override)
        return
    exists = _has(holder, last)
    value = override.value
    if override.kind == "set" and not exists:
        raise _unknown(tree, override)
    if (
        override.kind == "add"
        and exists
        and _get(holder, last) is not None
        and not isinstance(value, dict | list)
    ):
        reason = f"exists already, with the value {_get(holder, last)}"
        raise ConfigError(override.key, value, reason, f"Write {override.line.lstrip('+')}")
    old = _get(holder, last) if exists else None
    if isinstance(value, dict) and isinstance(old, dict):
        if override.kind == "set":
            _check_known(old, value, override)
        merge(old, value)
    elif isinstance(holder, list):
        holder[int(last)] = copy_tree(value)
    else:
        holder[last] = copy_tree(value)


def _descend(tree: dict[str, Any], parts: list[str], override: Override) -> Any:
    node: Any = tree
    for part in parts[:-1]:
        inner = _get(node, part) if _has(node, part) else None
        if not isinstance(inner, dict | list):
            if override.kind not in ("add", "force") or not isinstance(node, dict):
                raise _unknown(tree, override)
            inner = node[part] = {}
        node = inner
    if isinstance(node, list) and not _has(node, parts[-1]):
        reason = f"{'.'.join(parts[:-1])} has {len(node)} entries, counted from 0"
        raise ConfigError(override.key, override.value, reason)
    return node


def _delete(holder: Any, last: str, override: Override) -> None:
    old = _get(holder, last) if _has(holder, last) else None
    if old is None:
        raise ConfigError(override.key, None, "does not exist or is null, so it cannot be deleted")
    if override.value is not None and override.value != old:
        raise ConfigError(override.key, override.value, f"cannot be deleted: the value is {old}")
    del holder[int(last) if isinstance(holder, list) else last]


def _has(node: Any, key: str) -> bool:
    if isinstance(node, list):
        return key.isdecimal() and int(key) < len(node)
    return key in node


def _get(node: Any, key: str) -> Any:
    return node[int(key)] if isinstance(node, list) else node[key]


def _check_known(old: dict[str, Any], value: dict[str, Any], override: Override) -> None:
    for key, inner in value.items():
        if key not in old:
            field = f"{override.key}.{key}"
            raise ConfigError(
                field, inner, "there is no such key", closest(str(key), map(str, old))
            )
        if isinstance(inner, dict) and isinstance(old[key], dict):
            _check_known(old[key], inner, override)


MEANT = {
    "optim.learning_rate": "Did you mean optim.lr?",
    "train.learning_rate": "Did you mean optim.lr?",
    "train.tokens": "A trial's length is train.steps; of a sweep it is sweep.budget.tokens",
    "train.lr": "Did you mean optim.lr?",
    "train.seed": "Did you mean seed?",
    "sweep.seed": "Did you mean sweep.seeds?",
    "sweep.steps": "Did you mean sweep.budget.steps?",
    "sweep.tokens": "Did you mean sweep.budget.tokens?",
}
"""What is often looked for under a name that another section has too."""


def _unknown(tree: dict[str, Any], override: Override) -> ConfigError:
    """A key that is not there: probably mistyped, or of another section."""
    section, _, name = override.key.rpartition(".")
    known = [key for key, _ in leaves(tree)]
    elsewhere = [key for key in known if key.rpartition(".")[2] == name]
    hint = "Did you mean " + " or ".join(elsewhere) + "?" if elsewhere else ""
    hint = MEANT.get(override.key, hint)
    if not hint:
        siblings = [
            k.removeprefix(section + ".") for k in known if section and k.startswith(section + ".")
        ]
        near = closest(name, siblings)
        hint = near if near.startswith("Did") else closest(override.key, known)
    return ConfigError(
        override.key,
        override.value,
        "there is no such key",
        hint or f"To add it write +{override.line}",
    )
