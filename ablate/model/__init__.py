"""The transformer: one implementation, driven by one flat `ModelConfig` with OLMo's field names.

Lazy, so that `ablate.model.config` and `ablate.model.count` import without torch.

Axis names in the tensor signatures of this package:

    b  batch              h  query heads            q  queries (positions computed)
    t  positions          g  key/value heads        k  keys (positions seen, cached ones too)
    d  hidden width       c  width of one head      v  rows of the embedding
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ablate.model.config import ModelConfig
    from ablate.model.generate import OLMoGenerateOutput
    from ablate.model.transformer import OLMo, OLMoOutput

__all__ = ["ModelConfig", "OLMo", "OLMoGenerateOutput", "OLMoOutput"]

_HOMES = {
    "ModelConfig": "ablate.model.config",
    "OLMo": "ablate.model.transformer",
    "OLMoGenerateOutput": "ablate.model.generate",
    "OLMoOutput": "ablate.model.transformer",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
