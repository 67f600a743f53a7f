"""The source behind import paths: part of what a trial is, and found without importing it.

`package.module:Object` stays the same string while the code that it names is edited. So a resolved
configuration holds, under `sources`, a digest of that code; without import paths there is no such
key. It covers the named module and, of the user's own code (nothing installed), whatever that
imports by a plain `import` statement. Nothing is executed, so planning stays free of torch.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import sys
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from ablate.config.imports import is_import_path

__all__ = ["SOURCES", "edited", "sources"]

SOURCES = "sources"
"""The key of the resolved configuration."""
SECTIONS = ("model", "optim", "schedule", "clip", "spikes")
"""Where a variant may be an import path."""
INSTALLED = {"site-packages", "dist-packages"}
KNOWN = {*sys.stdlib_module_names, "ablate"}
"""Top-level names whose version is recorded elsewhere."""


def sources(config: Mapping[str, Any]) -> dict[str, str]:
    """Dotted field -> 16 hex digits of the code that its import path names, where it is found."""
    found: dict[str, str] = {}
    for section in SECTIONS:
        for name, value in (config.get(section) or {}).items():
            if isinstance(value, str) and is_import_path(value):
                digest = _digest(value.partition(":")[0])
                if digest is not None:
                    found[f"{section}.{name}"] = digest
    return found


def edited(config: Mapping[str, Any]) -> list[str]:
    """FIELD=PATH of a resolved configuration where the code is no longer what was recorded."""
    recorded = config.get(SOURCES) or {}
    now = sources(config) if recorded else {}
    other = [field.split(".") for field, digest in recorded.items() if now.get(field) != digest]
    return [f"{section}.{name}={config[section][name]}" for section, name in other]


def _digest(module: str) -> str | None:
    """Of the module's file and of the user's own modules that it imports, by their names."""
    if module.partition(".")[0] in KNOWN or _file(module) is None:
        return None
    files: dict[str, str] = {}
    waiting = [module]
    while waiting:
        name = waiting.pop()
        file = _file(name)
        if name in files or file is None or not (name == module or _is_own(name, file)):
            continue
        stat = file.stat()
        files[name], imported = _read(name, file, stat.st_mtime_ns, stat.st_size)
        if _is_own(name, file):
            waiting += [*imported, *_above(name)]
    text = "".join(f"{name} {digest}\n" for name, digest in sorted(files.items()))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _is_own(name: str, file: Path) -> bool:
    return name.partition(".")[0] not in KNOWN and not INSTALLED & set(file.parts)


def _above(name: str) -> list[str]:
    """The packages that are imported on the way to a module."""
    parts = name.split(".")
    return [".".join(parts[:i]) for i in range(1, len(parts))]


def _file(module: str) -> Path | None:
    """Where Python would find a module; a package's `__init__.py`.

    `find_spec` would import the packages around it, so it is asked for the outermost alone.
    """
    top, *rest = module.split(".")
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return None
    if spec is None:
        return None
    file = Path(spec.origin) if spec.origin and spec.has_location else None
    folders = [Path(folder) for folder in spec.submodule_search_locations or ()]
    for part in rest:
        files = [f for folder in folders for f in _candidates(folder, part) if f.exists()]
        file = files[0] if files else None
        folders = [folder / part for folder in folders if (folder / part).is_dir()]
    return file


def _candidates(folder: Path, name: str) -> tuple[Path, Path]:
    return folder / name / "__init__.py", folder / f"{name}.py"


@lru_cache(maxsize=1024)
def _read(name: str, file: Path, changed: int, size: int) -> tuple[str, tuple[str, ...]]:
    """(digest, names that it imports, not all of them modules) of a file as it is now."""
    code = file.read_bytes()
    try:
        tree = ast.parse(code) if file.suffix == ".py" else None
    except (SyntaxError, ValueError):  # importing it will say so
        tree = None
    package = name if file.stem == "__init__" else name.rpartition(".")[0]
    imported = () if tree is None else tuple(_imported(tree, package))
    return hashlib.sha256(code).hexdigest(), imported


def _imported(tree: ast.Module, package: str) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            try:
                base = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
            except ImportError:
                continue
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)
