"""The foundation: the embedding and the lowest blocks. No torch here.

Warm-up, protected precision, noise and narrow width may be confined to it: each of their fields
`foundation_layers` counts the blocks that belong to it, null meaning the whole model.
"""

from __future__ import annotations

from ablate.model.compat import clean_name, ungrouped_name

__all__ = ["in_foundation"]

EMBEDDING = ("wte", "wpe", "position", "emb_norm")
"""Parts of the transformer that belong to every foundation; a tied head is the embedding."""


def in_foundation(name: str, layers: int | None, group_size: int = 1) -> bool:
    """Whether the parameter or module `name` belongs to a foundation of so many blocks.

    Args:
        name: as the model names it, also within wrappers and block groups.
        layers: blocks of the foundation; None: everything belongs to it.
        group_size: the model's `block_group_size`.
    """
    if layers is None:
        return True
    pieces = ungrouped_name(clean_name(name), group_size).split(".")
    part = pieces[1] if pieces[0] == "transformer" and len(pieces) > 1 else pieces[0]
    return part in EMBEDDING or (part == "blocks" and int(pieces[2]) < layers)
