"""Finding a variant: a name in a table, or `package.module:Object`, an idea of the user's own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ablate.config.imports import is_import_path, load_object, unknown

__all__ = ["find"]


def find(table: Mapping[str, Any], name: str, field: str) -> Any:
    """The entry `name` of `table`, or the object that an import path names.

    Raises:
        ConfigError: no such entry, or nothing can be imported from the path. `field` is named.
    """
    if not is_import_path(name):
        if name not in table:
            raise unknown(field, name, table)
        return table[name]
    return load_object(field, name)
