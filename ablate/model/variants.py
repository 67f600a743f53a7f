"""Finding a variant: a name in a table, or `package.module:Object`, an idea of the user's own."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from ablate.config.typed import closest
from ablate.errors import ConfigError
from ablate.model.config import is_import_path

__all__ = ["find"]


def find(table: Mapping[str, Any], name: str, field: str) -> Any:
    """The entry `name` of `table`, or the object that an import path names.

    Raises:
        ConfigError: no such entry, or nothing can be imported from the path. `field` is named.
    """
    if not is_import_path(name):
        if name not in table:
            raise ConfigError(
                field, name, "must be one of " + ", ".join(table), closest(name, table)
            )
        return table[name]
    module_name, _, attribute = name.partition(":")
    try:
        found: Any = import_module(module_name)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError) as error:
        remedy = "Write it as package.module:Object, with the package on PYTHONPATH"
        raise ConfigError(field, name, f"cannot be imported ({error})", remedy) from error
    return found
