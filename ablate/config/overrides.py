"""One override, in Hydra's grammar: `key=value`, `+key=value`, `++key=value`, `~key`.

What nearly every override looks like (a plain key, and a number, a word, or a flat list of them)
is read here by regular expressions; anything else goes to Hydra's own parser, whose import takes
0.3 s. Both read alike.
"""

from __future__ import annotations

import functools
import re
import shlex
from dataclasses import dataclass
from typing import Any, Literal

from ablate.errors import ConfigError

__all__ = ["Override", "parse_override"]

Kind = Literal["set", "add", "force", "delete"]
KINDS: dict[str, Kind] = {"": "set", "+": "add", "++": "force", "~": "delete"}

_WORD = r"[A-Za-z_][A-Za-z0-9_-]*"
_KEY = re.compile(
    rf"(\+\+|\+|~|)({_WORD}(?:/{_WORD})+|{_WORD}(?:\.(?:{_WORD}|0|[1-9][0-9]*))*)(=(.*))?",
    re.DOTALL,
)
_PLAIN = re.compile(r"[A-Za-z0-9_/.:+-]+")
_LIST = re.compile(r"\[([A-Za-z0-9_/.+-]+(?:,[A-Za-z0-9_/.+-]+)*)\]")
_INT = re.compile(r"[+-]?(?:0|[1-9](?:_?[0-9])*)")
_DIGITS = r"[0-9](?:_?[0-9])*"
_UNSIGNED = r"(?:0|[1-9](?:_?[0-9])*)"
_FLOAT = re.compile(
    rf"[+-]?(?:(?:{_UNSIGNED}\.|{_UNSIGNED}?\.{_DIGITS}|{_UNSIGNED})[eE][+-]?{_DIGITS}"
    rf"|{_UNSIGNED}\.|{_UNSIGNED}?\.{_DIGITS}|[Ii][Nn][Ff]|[Nn][Aa][Nn])"
)
_CONSTANTS = {"true": True, "false": False, "null": None}


@dataclass(frozen=True, kw_only=True)
class Override:
    line: str
    kind: Kind
    key: str
    """A config group (`position`, `hydra/launcher`) or a dotted key (`model.rope`)."""
    value: Any
    """None also where a deletion names no value."""


@functools.lru_cache(maxsize=4096)
def parse_override(line: str) -> Override:
    """`line` in its parts; the value is shared, so copy it before changing it.

    Raises:
        ConfigError: for a line that is no override, or that names several choices (`a=1,2`).
    """
    match = _KEY.fullmatch(line)
    if match and (match[3] or match[1] == "~"):
        plain, value = _read_plain(match[4])
        if plain:
            return Override(line=line, kind=KINDS[match[1]], key=match[2], value=value)
    return _parse_with_hydra(line)


def _read_plain(text: str | None) -> tuple[bool, Any]:
    """(True, value) where `text` is of the plain kind."""
    if text is None:
        return True, None
    if text == "":
        return True, ""
    if _PLAIN.fullmatch(text):
        return True, _scalar(text)
    if match := _LIST.fullmatch(text):
        return True, [_scalar(item) for item in match[1].split(",")]
    return False, None


def _scalar(text: str) -> Any:
    if text.lower() in _CONSTANTS:
        return _CONSTANTS[text.lower()]
    if _INT.fullmatch(text):
        return int(text)
    return float(text) if _FLOAT.fullmatch(text) else text


def _parse_with_hydra(line: str) -> Override:
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.core.override_parser.types import QuotedString
    from hydra.errors import HydraException

    key, _, text = line.partition("=")
    try:
        parsed = OverridesParser.create().parse_override(line)
    except HydraException as error:
        raise ConfigError(key or "override", text, _reason(line, error), _remedy(line)) from None
    if parsed.is_sweep_override():
        reason = "names several values for one trial"
        remedy = (
            "Several trials are `ablate train -m`, or the factors of a sweep; "
            "a list is [1,2], a text is '\"a,b\"'"
        )
        raise ConfigError(key.lstrip("+~"), text, reason, remedy)
    if parsed.package is not None:
        raise ConfigError(
            key, text, "moves a group to another place (@)", "Drop the part from @ on"
        )
    kind: Kind = (
        "delete"
        if parsed.is_delete()
        else "force"
        if parsed.is_force_add()
        else "add"
        if parsed.is_add()
        else "set"
    )
    value = parsed.value()
    if isinstance(value, QuotedString):
        value = value.text
    return Override(line=line, kind=kind, key=parsed.key_or_group, value=value)


def _reason(line: str, error: Exception) -> str:
    if "=" not in line and not line.startswith("~"):
        return "is no override"
    return "cannot be read: " + str(error).strip().splitlines()[0].rstrip(".")


def _remedy(line: str) -> str:
    key, equals, text = line.partition("=")
    if not equals:
        return "Write key=value"
    if key != key.strip() or " " in key:
        return "Write key=value without spaces around ="
    if "(" in text and "=" in text:
        return "Quote the whole override for the shell"
    if text.startswith("[") and text.endswith("]") and "=" in text:
        items = ",".join(f'"{item.strip()}"' for item in text[1:-1].split(","))
        return f"Quote each item of the list, and the whole for the shell: '{key}=[{items}]'"
    if "{" in text or "[" in text:
        return "Close every bracket, and quote the override for the shell: '" + line.strip() + "'"
    quoted = '"' + text.replace('"', '\\"') + '"'
    return (
        f"Quote the value, once for the shell and once for Hydra: {shlex.quote(f'{key}={quoted}')}"
    )
