"""The blocks that FlexAttention passes over are found from their edges, not in a table."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask
from torch.utils._python_dispatch import TorchDispatchMode

from ablate.model import ModelConfig
from ablate.model.activations import Pass, activations
from ablate.model.flex import block_mask
from tests.model.models import BASE

LISTS = ("kv_num_blocks", "kv_indices", "full_kv_num_blocks", "full_kv_indices")
LISTS += ("q_num_blocks", "q_indices", "full_q_num_blocks", "full_q_indices")
CPU = torch.device("cpu")


class Largest(TorchDispatchMode):
    """Elements of the largest tensor that is made."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for made in out if isinstance(out, tuple | list) else (out,):
            if isinstance(made, Tensor):
                self.elements = max(self.elements, made.untyped_storage().nbytes() // 4)
        return out


def documents(rows: int, length: int, share: float) -> Tensor:
    """Names of positions, of which about `share` begin a document."""
    generator = torch.Generator().manual_seed(length)
    return (torch.rand(rows, length, generator=generator) < share).long().cumsum(-1)


@pytest.mark.parametrize("length", [1, 128, 129, 300, 513])
@pytest.mark.parametrize("window", [None, 5, 128, 129])
def test_they_are_those_that_torch_finds_in_a_table(length: int, window: int | None) -> None:
    for share in (None, 0.002, 0.02, 0.5):
        names = None if share is None else documents(2, length, share)
        ours = block_mask(length, window, names, CPU)
        rows = None if names is None else 2
        want = create_block_mask(ours.mask_mod, rows, None, length, length, device="cpu")
        for name in LISTS:
            assert torch.equal(getattr(ours, name), getattr(want, name)), name
        assert ours.shape == want.shape
        assert ours.BLOCK_SIZE == want.BLOCK_SIZE


def test_no_table_of_all_pairs_is_made() -> None:
    length, rows = 4096, 2
    names = documents(rows, length, 0.01)
    with Largest() as made:
        block_mask(length, 512, names, CPU)
    assert 0 < made.elements <= 2 * rows * length


@pytest.mark.parametrize("masked", [True, False])
def test_the_plan_counts_what_the_lists_take(masked: bool) -> None:
    """Of two kinds of layers, one with a window; in float32, which no other kernel serves so."""
    rows, length, window = 2, 300, 64
    config = ModelConfig(
        **{**BASE, "d_model": 64, "max_sequence_length": length}, position="none",
        sliding_window_pattern=[window, -1], attention_backend="flex",
    )  # fmt: skip
    names = documents(rows, length, 0.02) if masked else None
    made = [block_mask(length, near, names, CPU) for near in (window, None)]
    held = sum(getattr(m, name).nbytes for m in made for name in LISTS)
    held += names.nbytes if names is not None else 0
    given = Pass(rows=rows, length=length, device="cuda", documents=masked)
    assert activations(config, given).tables == held
