"""torch without `torch._dynamo`, as long as nothing is compiled.

torch's optimisers import it when they are first used, which takes as long as torch itself, and
then call two functions of it that do nothing outside of compiled code. A trial should not wait for
that. Whatever else anybody asks of `torch._dynamo` imports it as usual.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

__all__ = ["postpone_dynamo"]

NAME = "torch._dynamo"


class Postponed(ModuleType):
    """Stands in for the module until something is asked of it."""

    def disable(self, fn: Callable[..., Any] | None = None, *_: Any, **kwargs: Any) -> Any:
        # torch's optimisers name a function; whoever asks for a decorator means the real one.
        return _imported(self).disable(**kwargs) if fn is None else fn

    def graph_break(self, *_: Any, **__: Any) -> None: ...

    def __getattr__(self, name: str) -> Any:
        return getattr(_imported(self), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(_imported(self), name, value)


def postpone_dynamo() -> None:
    """Does nothing where it is imported already."""
    if NAME in sys.modules:
        return
    module = Postponed(NAME)
    spec = importlib.util.find_spec(NAME)
    # Whoever looks through all modules (inspect does) asks for these, and means nothing by it.
    module.__dict__.update(__file__=spec and spec.origin, __warningregistry__={})
    sys.modules[NAME] = module
    torch._dynamo = module


def _imported(module: ModuleType) -> ModuleType:
    """The real one, in the place of `module` from now on."""
    if sys.modules.get(NAME) is module:
        del sys.modules[NAME]
        torch._dynamo = importlib.import_module(NAME)
    return sys.modules[NAME]
