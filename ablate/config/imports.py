"""`package.module:Object`, a variant of the user's own: a name that needs no edit of ours."""

from __future__ import annotations

import contextlib
import inspect
import traceback
from collections.abc import Collection, Iterator, Mapping
from importlib import import_module
from typing import Any

from ablate.config.typed import closest
from ablate.errors import AblateError, ConfigError

__all__ = ["is_import_path", "load_object", "own_code", "require_known", "unknown", "users_own"]


def is_import_path(name: str) -> bool:
    """Whether `name` is `package.module:Object`."""
    return ":" in name


def require_known(field: str, name: str, known: Collection[str]) -> None:
    """Raises ConfigError unless `name` is one of `known`, or an import path."""
    if name not in known and not is_import_path(name):
        raise unknown(field, name, known)


def unknown(field: str, name: str, known: Collection[str], *, own: bool = True) -> ConfigError:
    """That `name` is not one of `known` (nor, where one's `own` is taken, an import path), and what
    was probably meant.
    """
    reason, meant = "must be one of " + ", ".join(known), ""
    if own:
        reason += ", or an import path package.module:Object"
        module, _, attribute = name.rpartition(".")
        meant = f"Did you mean {module}:{attribute}?" if module and attribute else ""
    return ConfigError(field, name, reason, meant or closest(name, known, listed=True))


def load_object(field: str, path: str) -> Any:
    """Imports `package.module:Object` (the object may be nested: `Outer.Inner`).

    Raises:
        ConfigError: naming `field`, where the module or the object does not exist, or where the
            module's own code fails.
    """
    module, _, attribute = path.partition(":")
    try:
        found: Any = import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError) as error:
        remedy = "Write it as package.module:Object, with the package on PYTHONPATH"
        raise ConfigError(field, path, f"cannot be imported ({error})", remedy) from error
    except Exception as error:
        reason = f"cannot be imported: its module raises {type(error).__name__}: {error}"
        raise ConfigError(field, path, reason, f"Mend {module}") from error
    return found


@contextlib.contextmanager
def users_own(field: str, name: str) -> Iterator[None]:
    """Around the building of what `name` names: what an object of the user's own raises there.

    Raises:
        ConfigError: naming `field`, the error and its line, if `name` is an import path.
    """
    try:
        yield
    except AblateError:
        raise
    except Exception as error:
        if not is_import_path(name):
            raise
        raise ConfigError(field, name, f"cannot be built ({_said(error)})") from error


def own_code(error: Exception, config: Mapping[str, Any]) -> str | None:
    """Where the user's own code went wrong, or, where it only returned what others could not take,
    where it is written; None where the fields name none.

    Args:
        error: that was raised while it ran.
        config: field -> value; the import paths among them are the user's own.
    """
    own = {k: v for k, v in config.items() if isinstance(v, str) and is_import_path(v)}
    said = []
    for field, path in own.items():
        found = inspect.unwrap(load_object(field, path))
        code = getattr(found, "forward", found)
        try:
            file, line = inspect.getsourcefile(code), inspect.getsourcelines(code)[1]
        except (OSError, TypeError):  # of a C extension, or made at run time
            continue
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if frame.filename == file]
        if lines:
            return f"{field}={path} raised it at {file}:{lines[-1]}"
        said.append(f"{field}={path} is written at {file}:{line}")
    return "; ".join(said) or None


def _said(error: Exception) -> str:
    """An error in one line: its class, its message and where it was raised."""
    words = " ".join(str(error).split())
    frames = traceback.extract_tb(error.__traceback__)
    where = f", {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__}{': ' if words else ''}{words}{where}"
