"""The YAML files behind the groups: where they are looked for, and what one of them sets.

A user's own come first: `./sweeps/` and `./conf/sweep/` for sweeps, `./conf/<group>/` for every
other group, then ours. The primary configuration is always ours, so a `train.yaml` that happens to
lie in `./conf` is left alone.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ablate.config.schema import TrialConfig
from ablate.errors import ConfigError

__all__ = [
    "CONF",
    "Option",
    "folders",
    "group_names",
    "locate",
    "option_names",
    "read_option",
    "read_yaml",
]

CONF = Path(__file__).parents[1] / "conf"
_SECTIONS = {f.name for f in dataclasses.fields(TrialConfig)} | {"sweep"}
_NAME = re.compile(r"[^\s/.][^\s/]*(?:/[^\s/.][^\s/]*)*")


@dataclass(frozen=True, kw_only=True)
class Option:
    """One file of a group. Shared between compositions: copy before changing."""

    values: dict[str, Any]
    """What it sets, from the root of the configuration, without its bases."""
    package: str
    """The section that the file's own keys stand in; empty is the root."""
    bases: tuple[str, ...]
    """Options of the same group that it builds on; the place of `_self_` is kept as that word."""
    plain: bool
    """False where its defaults list says more than names of bases: then Hydra itself composes."""
    interpolated: bool
    """Whether the text holds `${`."""


def folders(group: str, cwd: Path) -> list[Path]:
    """Where the options of `group` are looked for, the first find wins."""
    own = [cwd / "conf" / group, CONF / group]
    return [cwd / "sweeps", *own] if group == "sweep" else own


def group_names(cwd: Path) -> list[str]:
    """Every group, the user's included."""
    found = {
        p.name
        for root in (cwd / "conf", CONF)
        if root.is_dir()
        for p in root.iterdir()
        if p.is_dir() and p.name.isidentifier() and not p.name.startswith("__")
    }
    return sorted(found | ({"sweep"} if (cwd / "sweeps").is_dir() else set()))


def option_names(group: str, cwd: Path) -> list[str]:
    """Its files; those of sweeps in subfolders too, as `folder/name`."""
    pattern = "**/*.yaml" if group == "sweep" else "*.yaml"
    found = ((folder, p) for folder in folders(group, cwd) for p in folder.glob(pattern))
    return sorted({p.relative_to(folder).with_suffix("").as_posix() for folder, p in found})


def locate(group: str, option: str, cwd: Path) -> Path | None:
    """The file of an option, or None."""
    if not _NAME.fullmatch(option):
        return None
    name = option if option.endswith(".yaml") else option + ".yaml"
    return next((p for folder in folders(group, cwd) if (p := folder / name).is_file()), None)


def read_option(path: Path, group: str, package: str | None = None) -> Option:
    """The option at `path`; read again only when the file has changed.

    Args:
        path: the file.
        group: its group, which is also its package where nothing else is said.
        package: for a base, the package of the option that builds on it.
    """
    stat = path.stat()
    return _read_option(
        path, group, group if package is None else package, stat.st_mtime_ns, stat.st_size
    )


@functools.lru_cache(maxsize=1024)
def _read_option(path: Path, group: str, package: str, mtime_ns: int, size: int) -> Option:
    text, values = read_yaml(path, group)
    header = re.match(r"(?:\s*#\s*@.*\n|\s*\n)*", text)
    found = re.search(r"#\s*@package\s+(\S+)", header[0]) if header else None
    if found:
        package = found[1].replace("_global_", "").replace("_group_", group).strip(".")
    elif re.search(r"^\s*#\s*@package\b", text, re.MULTILINE) or _SECTIONS & set(values):
        # Hydra would put the keys below the group's own name, where nobody reads them.
        remedy = f"Make `# @package _global_` the first line of {path}"
        raise ConfigError(group, path.stem, "its file does not begin with its package", remedy)
    defaults = values.pop("defaults", None) or []
    bases = tuple(d for d in defaults if isinstance(d, str))
    plain = len(bases) == len(defaults) and not any(set(b) & set("/@ ") for b in bases)
    if not plain or "_self_" not in bases:
        bases = (*bases, "_self_")  # where Hydra puts it
    for part in reversed(package.split(".") if package else []):
        values = {part: values}
    return Option(
        values=values, package=package, bases=bases, plain=plain, interpolated="${" in text
    )


def read_yaml(path: Path, field: str) -> tuple[str, dict[str, Any]]:
    """Text and content of a YAML file, read as OmegaConf reads it.

    Raises:
        ConfigError: naming `field`, for a file that is no YAML mapping.
    """
    text = path.read_text(encoding="utf-8")
    try:
        values = yaml.load(text, Loader=_Loader)  # a safe loader
    except yaml.YAMLError as error:
        reason = "is no readable YAML: " + " ".join(str(error).split())
        raise ConfigError(field, path.name, reason, f"Correct {path}") from None
    if values is None:
        values = {}
    if not isinstance(values, dict):
        raise ConfigError(field, path.name, "must hold key: value pairs", f"Correct {path}")
    return text, values


_Safe: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_Safe):
    """YAML as OmegaConf reads it: 1e-3 is a number, a date is a text, a key stands once."""

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        keys = [
            k.value for k, _ in node.value if k.tag == yaml.resolver.BaseResolver.DEFAULT_SCALAR_TAG
        ]
        for key in keys:
            if keys.count(key) > 1:
                raise yaml.constructor.ConstructorError(
                    "in a mapping", node.start_mark, f"the key {key} stands twice", node.start_mark
                )
        return super().construct_mapping(node, deep=deep)


_NUMBER = re.compile(
    r"""[-+]?[0-9]+(?:_[0-9]+)*\.[0-9_]*(?:[eE][-+]?[0-9]+)?
    |[-+]?[0-9]+(?:_[0-9]+)*[eE][-+]?[0-9]+
    |\.[0-9]+(?:_[0-9]+)*(?:[eE][-+][0-9]+)?
    |[-+]?[0-9]+(?:_[0-9]+)*(?::[0-5]?[0-9])+\.[0-9_]*
    |[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)""",
    re.VERBOSE,
)


def _resolvers() -> dict[str, list[tuple[str, re.Pattern[str]]]]:
    replaced = ("tag:yaml.org,2002:timestamp", "tag:yaml.org,2002:float")
    kept = {
        first: [(tag, pattern) for tag, pattern in pairs if tag not in replaced]
        for first, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    number = re.compile(rf"^(?:{_NUMBER.pattern})$", re.VERBOSE)
    for first in "-+0123456789.":
        kept.setdefault(first, []).append(("tag:yaml.org,2002:float", number))
    return kept


_Loader.yaml_implicit_resolvers = _resolvers()
