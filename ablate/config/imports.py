"""`package.module:Object`, a variant of the user's own: a name that needs no edit of ours."""

from __future__ import annotations

from collections.abc import Collection
from importlib import import_module
from typing import Any

from ablate.config.typed import closest
from ablate.errors import ConfigError

__all__ = ["is_import_path", "load_object", "require_known"]


def is_import_path(name: str) -> bool:
    """Whether `name` is `package.module:Object`."""
    return ":" in name


def require_known(field: str, name: str, known: Collection[str]) -> None:
    """Raises ConfigError unless `name` is one of `known`, or an import path."""
    if name not in known and not is_import_path(name):
        raise ConfigError(field, name, "must be one of " + ", ".join(known), closest(name, known))


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
