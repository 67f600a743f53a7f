"""Mappings to dataclasses, strictly: unknown keys and wrong types are refused by name, with a
remedy.

Numbers follow OmegaConf, as OLMo's own configuration does: an int field refuses a float (also
`8.0`),
accepts an int given as text; a float field accepts an int; a bool field accepts only booleans.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import types
import typing
from collections.abc import Iterable, Mapping
from typing import Any, Literal, TypeVar, Union

from ablate.errors import ConfigError

__all__ = ["build", "check_types", "closest", "require"]

T = TypeVar("T")


def build(cls: type[T], values: Mapping[str, Any], prefix: str = "") -> T:
    """`values` as an instance of the dataclass `cls`; nested dataclasses are built too.

    Raises:
        ConfigError: for an unknown key or a value of the wrong type; `prefix` names the section.
    """
    hints = _hints(cls)
    for key in values:
        if key not in hints:
            raise ConfigError(
                join(prefix, key), values[key], "there is no such field", closest(str(key), hints)
            )
    for f in dataclasses.fields(cls):  # type: ignore[arg-type]
        required = f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
        if f.init and required and f.name not in values:
            raise ConfigError(join(prefix, f.name), None, "is missing")
    return cls(**{k: coerce(v, hints[k], join(prefix, k)) for k, v in values.items()})


def check_types(instance: Any, prefix: str = "") -> None:
    """Checks, and normalises in place, the types of a dataclass that was constructed directly."""
    for name, hint in _hints(type(instance)).items():
        value = getattr(instance, name)
        fixed = coerce(value, hint, join(prefix, name))
        if fixed is not value:
            object.__setattr__(instance, name, fixed)


def coerce(value: Any, hint: Any, field: str) -> Any:
    """`value` as the type `hint`, or a ConfigError that names `field`."""
    if type(value) is hint:
        return value  # the common case, and half of the time that a large plan takes
    origin = typing.get_origin(hint)
    if hint is Any:
        return value
    if origin in (Union, types.UnionType):
        return _coerce_union(value, typing.get_args(hint), field)
    if origin is Literal:
        choices = typing.get_args(hint)
        if value in choices and type(value) in {type(c) for c in choices}:
            return value
        names = ", ".join(str(c) for c in choices)
        hint_text = closest(str(value), [str(c) for c in choices], listed=True)
        raise ConfigError(field, value, f"must be one of {names}", hint_text)
    if dataclasses.is_dataclass(hint):
        if isinstance(value, typing.cast(type, hint)):
            return value
        if isinstance(value, Mapping):
            return build(typing.cast(type, hint), value, field)
        raise ConfigError(field, value, "must be a section of key: value pairs")
    if origin in (list, tuple):
        return _coerce_sequence(value, hint, origin, field)
    if origin is dict or hint is dict:
        if isinstance(value, Mapping):
            return dict(value)
        raise ConfigError(field, value, "must be a mapping")
    return _coerce_scalar(value, hint, field)


def closest(word: str, known: Iterable[str], *, listed: bool = False) -> str:
    """A remedy for a typing mistake: the nearest known words, or all of them where they are few
    (unless they are `listed` in the reason already).
    """
    names = sorted(known)
    near = difflib.get_close_matches(word, names, n=3, cutoff=0.6)
    if near:
        return "Did you mean " + " or ".join(near) + "?"
    return "Known: " + ", ".join(names) if 0 < len(names) <= 24 and not listed else ""


def require(condition: bool, field: str, value: Any, reason: str, remedy: str = "") -> None:
    """Raises ConfigError unless `condition` holds."""
    if not condition:
        raise ConfigError(field, value, reason, remedy)


def join(prefix: str, key: str) -> str:
    return f"{prefix}.{key}" if prefix else str(key)


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
    hints = typing.get_type_hints(cls)
    return {f.name: hints[f.name] for f in dataclasses.fields(cls) if f.init}


def _coerce_union(value: Any, members: tuple[Any, ...], field: str) -> Any:
    if value is None and type(None) in members:
        return None
    errors = []
    for member in (m for m in members if m is not type(None)):
        try:
            return coerce(value, member, field)
        except ConfigError as error:
            errors.append(error)
    raise errors[0]


def _coerce_sequence(value: Any, hint: Any, origin: type, field: str) -> Any:
    if isinstance(value, str) or not isinstance(value, list | tuple):
        raise ConfigError(field, value, "must be a list", f"Write {field}=[{value}]")
    args = typing.get_args(hint)
    item = args[0] if args else Any
    return origin(coerce(v, item, f"{field}[{i}]") for i, v in enumerate(value))


_NAMES = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}


def _coerce_scalar(value: Any, hint: Any, field: str) -> Any:
    if hint is bool and isinstance(value, bool):
        return value
    if hint is int and not isinstance(value, bool):
        if isinstance(value, int):
            return value
        if isinstance(value, str):
            try:
                return int(value)
            except ValueError:
                pass
    if hint is float and not isinstance(value, bool):
        if isinstance(value, int | float):
            return float(value)
        if isinstance(value, str):
            try:
                return float(value)
            except ValueError:
                pass
    if hint is str and isinstance(value, str):
        return value
    remedy = ""
    if hint is int and isinstance(value, float) and value.is_integer():
        remedy = f"Write {int(value)}"
    if hint is str and isinstance(value, bool):
        remedy = 'YAML reads on/off/yes/no as booleans: quote the word, as in "on"'
    raise ConfigError(field, value, f"must be {_NAMES.get(hint, hint)}", remedy)
