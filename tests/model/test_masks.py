"""Which query sees which key: causality, windows, masks, biases and documents."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from ablate.errors import ConfigError, DataError
from ablate.model.attention import Scope
from ablate.model.mask import Visibility, scopes
from ablate.model.position import Position
from tests.model.models import OLMO2, difference, tiny, tokens, upstream

POSITIONS: dict[str, dict[str, Any]] = {
    "learned": {},
    "rope": {"rope": True},
    "alibi": {"alibi": True},
    "sinusoidal": {"position": "sinusoidal"},
    "relative": {"position": "relative"},
    "none": {"position": "none"},
}
BLOCKS = ("sequential", "llama")
DOCUMENTS = torch.tensor([[5, 7, 4, 0], [16, 0, 0, 0]])


def reach(model: Any, length: int = 12) -> Tensor:
    """[query, position]: whether the logits of a query depend on the embedding at a position."""
    x = torch.randn(1, length, 32, generator=torch.Generator().manual_seed(0)).requires_grad_()
    ids = torch.zeros(1, length, dtype=torch.long)
    logits = model(ids, input_embeddings=x).logits
    rows = [
        torch.autograd.grad(logits[0, q].square().sum(), x, retain_graph=True)[0]
        for q in range(length)
    ]
    return torch.stack([row[0].abs().sum(-1) > 0 for row in rows])


def blocks_of(lengths: Tensor, length: int) -> Tensor:
    """The oracle of document masks: block-diagonal and causal, [b, 1, t, t]."""
    rows = []
    for row in lengths.tolist():
        name = torch.repeat_interleave(torch.arange(len(row)), torch.tensor(row))
        rows.append((name[:, None] == name[None, :]).tril())
    return torch.stack(rows)[:, None, :length, :length]


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("position", POSITIONS)
def test_a_token_sees_itself_and_what_came_before(position: str, block: str) -> None:
    seen = reach(tiny(block_type=block, **POSITIONS[position]))
    assert torch.equal(seen, torch.ones(12, 12, dtype=torch.bool).tril())


@pytest.mark.parametrize("block", BLOCKS)
def test_a_window_of_w_reaches_w_minus_one_back_in_each_layer(block: str) -> None:
    place = torch.arange(12)
    distance = place[:, None] - place[None, :]
    one = reach(tiny(n_layers=1, sliding_window=3, block_type=block))
    assert torch.equal(one, (distance >= 0) & (distance < 3))
    two = reach(tiny(n_layers=2, sliding_window=3, block_type=block))
    assert torch.equal(two, (distance >= 0) & (distance < 5))


def test_a_window_pattern_repeats_and_leaves_the_last_layer_full() -> None:
    model = tiny(n_layers=5, sliding_window_pattern=[4, 6, -1])
    assert [model.config.window(i) for i in range(5)] == [4, 6, None, 4, None]
    assert torch.equal(reach(model), torch.ones(12, 12, dtype=torch.bool).tril())


@pytest.mark.parametrize("fields", [{}, {"rope": True}, OLMO2, {"block_type": "llama"}], ids=str)
def test_a_window_is_upstreams_model_under_a_band(fields: dict[str, Any]) -> None:
    model = tiny(**fields)
    band = torch.ones(16, 16, dtype=torch.bool).tril().triu(-4)[None, None]
    want = upstream(model)(tokens(), attention_bias=band).logits
    windowed = tiny(**fields, sliding_window=5)
    assert difference(windowed(tokens()).logits, want) < 1e-6


# ---- documents


@pytest.mark.parametrize("backend", ["sdpa", "math"])
@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize(
    "lengths", [DOCUMENTS, torch.tensor([[2] * 8, [1] * 6 + [10, 0]])], ids=["few", "many"]
)
def test_documents_equal_the_block_diagonal_bias(
    position: str, backend: str, lengths: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ablate.model.mask.SHORT_DOCUMENT", 5)  # few: split; many: masked
    model, x = tiny(attention_backend=backend, **POSITIONS[position]), tokens()
    got = model(x, doc_lens=lengths, max_doc_lens=[int(n) for n in lengths.amax(1)]).logits
    want = model(x, attention_bias=blocks_of(lengths, 16)).logits
    assert difference(got, want) < 1e-6


@pytest.mark.parametrize("block", BLOCKS)
def test_documents_equal_upstream_under_the_bias(block: str) -> None:
    model, x = tiny(block_type=block, rope=True), tokens()
    want = upstream(model)(x, attention_bias=blocks_of(DOCUMENTS, 16)).logits
    assert difference(model(x, doc_lens=DOCUMENTS).logits, want) < 1e-6


def test_a_document_does_not_notice_the_others() -> None:
    model, x = tiny(**OLMO2, sliding_window=4), tokens()
    packed = model(x[:1], doc_lens=DOCUMENTS[:1]).logits[0]
    alone = [model(part).logits[0] for part in x[:1].split((5, 7, 4), dim=1)]
    assert difference(packed, torch.cat(alone)) < 2e-6


def test_documents_together_with_a_padding_mask() -> None:
    model, x = tiny(alibi=True), tokens()
    mask = torch.ones(2, 16)
    mask[:, 14:] = 0
    got = model(x, doc_lens=DOCUMENTS, attention_mask=mask).logits
    want = model(x, attention_bias=blocks_of(DOCUMENTS, 16), attention_mask=mask).logits
    assert difference(got, want) < 1e-6


def test_document_lengths_that_do_not_add_up_are_refused() -> None:
    with pytest.raises(DataError, match=r"doc_lens\[1\] adds up to 15, but there are 16"):
        tiny()(tokens(), doc_lens=torch.tensor([[16, 0], [8, 7]]))


# ---- what is kept from pass to pass


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("position", POSITIONS)
def test_a_pass_is_the_same_whatever_went_before(position: str, block: str) -> None:
    """Longer and shorter rows, other types, passes with and without gradients, masks."""
    fields = {"sliding_window_pattern": [4, -1], "block_type": block, **POSITIONS[position]}
    model, ids = tiny(**fields), tokens(2, 20)

    def passes(model: Any) -> list[Tensor]:
        with torch.no_grad():
            found = [model(ids[:, :n]).logits for n in (6, 20, 6)]
        found += [model(ids[:, :9]).logits, model(ids[:1, :9]).logits]
        with torch.autocast("cpu", torch.bfloat16):
            found.append(model(ids[:, :9]).logits)
        found.append(model(ids[:, :9], attention_mask=torch.ones(2, 9)).logits)
        return found

    used = passes(model)[::-1]  # after everything else
    for i, again in enumerate(reversed(passes(model))):
        assert torch.equal(again, used[i])
    for i, fresh in enumerate(reversed(passes(tiny(**fields)))):
        assert torch.equal(fresh, used[i])


class Annealed(Position):
    """A bias of the user's own, which is another in each pass."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.passes = 0

    def bias(self, length: int, like: Tensor) -> Tensor:
        self.passes += 1
        place = torch.arange(length)
        return (-self.passes * (place[None] - place[:, None]).abs().float())[None].repeat(4, 1, 1)


def test_the_bias_of_a_scheme_of_ones_own_is_asked_for_in_every_pass() -> None:
    model = tiny(position="tests.model.test_masks:Annealed")
    with torch.no_grad():
        assert not torch.equal(model(tokens()).logits, model(tokens()).logits)


# ---- where upstream goes wrong


@pytest.mark.parametrize("position", ["alibi", "relative"])
def test_a_bias_of_the_users_does_not_drop_the_position_bias(position: str) -> None:
    model, x = tiny(**POSITIONS[position]), tokens()
    causal = torch.ones(16, 16, dtype=torch.bool).tril()
    assert difference(model(x, attention_bias=causal).logits, model(x).logits) < 1e-6
    if position == "alibi":
        dropped = upstream(model)(x, attention_bias=causal[None, None]).logits
        assert difference(dropped, upstream(model)(x).logits) > 1e-3, "upstream has been corrected"


def test_a_bias_of_the_users_does_not_drop_the_window() -> None:
    model, x = tiny(sliding_window=4), tokens()
    causal = torch.ones(16, 16, dtype=torch.bool).tril()
    assert difference(model(x, attention_bias=causal).logits, model(x).logits) < 1e-6


@pytest.mark.parametrize("dtype", [torch.bool, torch.int8, torch.uint8, torch.int64])
@pytest.mark.parametrize("shape", [(16, 16), (1, 16, 16), (1, 1, 16, 16), (2, 4, 16, 16)])
def test_integer_biases_say_who_may_attend_in_any_shape(
    dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    model, x = tiny(), tokens()
    allowed = torch.ones(16, 16).tril().triu(-5).to(dtype).expand(shape)
    want = upstream(model)(x, attention_bias=allowed.bool().expand(2, 4, 16, 16)).logits
    assert difference(model(x, attention_bias=allowed).logits, want) < 1e-6


def test_a_float_bias_may_hold_minus_infinity_and_hide_whole_rows() -> None:
    model, x = tiny(rope=True), tokens()
    bias = torch.zeros(16, 16).masked_fill(torch.ones(16, 16).triu(1).bool(), -torch.inf)
    assert difference(model(x, attention_bias=bias).logits, model(x).logits) < 1e-6
    bias[3] = -torch.inf
    assert torch.isfinite(model(x, attention_bias=bias).logits).all()


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("block", BLOCKS)
def test_left_padding_hides_nothing_but_itself(block: str, autocast: bool) -> None:
    model, x = tiny(rope=True, block_type=block), tokens(1, 12)
    padded = torch.cat((torch.zeros(1, 4, dtype=torch.long), x), dim=1)
    mask = torch.tensor([[0] * 4 + [1] * 12])
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast), torch.no_grad():
        got, want = model(padded, attention_mask=mask).logits, model(x).logits
    assert torch.isfinite(got).all()
    assert difference(got[:, 4:].float(), want.float()) < (0.05 if autocast else 1e-5)


def test_masks_of_the_wrong_length_are_refused() -> None:
    with pytest.raises(DataError, match="attention_mask covers 15 positions, but there are 16"):
        tiny()(tokens(), attention_mask=torch.ones(2, 15))
    with pytest.raises(DataError, match="attention_bias of shape"):
        tiny()(tokens(), attention_bias=torch.ones(15, 15))


def test_inputs_longer_than_the_learned_positions_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"model\.max_sequence_length=48"):
        tiny()(tokens(1, 49))
    tiny(rope=True)(tokens(1, 49))  # rotary tables grow


def test_names_are_made_once_and_only_where_a_kernel_reads_them(monkeypatch) -> None:
    """Flex reads them, in every layer the same ones; varlen is told where documents begin."""
    fields = {"rope": True, "sliding_window_pattern": [4, -1]}
    monkeypatch.setattr("ablate.model.kernels.ONLY_CUDA", ())

    def of(kernel: str) -> list[Scope]:
        model = tiny(**fields, attention_backend=kernel).to(torch.bfloat16)
        x = model.embed(tokens(), 0)
        given = Visibility(doc_lens=DOCUMENTS)
        with torch.no_grad():
            return scopes(model.config, model.position, model.cache, x, 0, given)

    assert [scope.names for scope in of("varlen")] == [None, None]
    near, far = of("flex")
    assert near.names is not None
    assert near.names is far.names
