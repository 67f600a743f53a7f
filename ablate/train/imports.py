"""`package.module:Object`, the user's own variant, as an object."""

from __future__ import annotations

import importlib
from typing import Any

from ablate.errors import ConfigError

__all__ = ["is_import_path", "load_object"]


def is_import_path(name: str) -> bool:
    return ":" in name


def load_object(field: str, path: str) -> Any:
    """Imports `package.module:Object`.

    Raises:
        ConfigError: naming `field`, where the module or the object does not exist.
    """
    module, _, name = path.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except ImportError as error:
        raise ConfigError(
            field, path, f"cannot be imported ({error})", "Is it on PYTHONPATH?"
        ) from error
    except AttributeError:
        raise ConfigError(field, path, f"module {module} has no {name}") from None
