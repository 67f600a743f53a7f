"""The transformer: embed, blocks, norm, logits. Everything else is in a file of its own."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn

from ablate.errors import DataError
from ablate.model import compat, generate, init, sharding
from ablate.model.block import BLOCKS, Block, BlockGroup
from ablate.model.cache import BufferCache, KeyValue
from ablate.model.checkpointing import checkpointer, checkpoints_block
from ablate.model.config import ModelConfig
from ablate.model.linear import Unembedding, linear, multiply
from ablate.model.mask import Visibility, scopes
from ablate.model.noisy import Moment, NoisyNorm
from ablate.model.norm import build_norm
from ablate.model.packed import require_flash
from ablate.model.position import build_position
from ablate.model.recording import Recorder
from ablate.model.widths import is_uniform, layer_configs

__all__ = ["OLMo", "OLMoOutput"]


class OLMoOutput(NamedTuple):
    logits: Float[Tensor, "b t v"]
    attn_key_values: list[KeyValue] | None
    """Keys and values of each layer, where use_cache asked for them."""
    hidden_states: tuple[Float[Tensor, "b t d"], ...] | None
    """The input of each block (or group of blocks), then the output of the final norm."""


class OLMo(nn.Module):
    """A decoder-only language model, built and initialised from a `ModelConfig`.

    Built on `config.init_device` (the CPU by default; nothing is initialised on `meta`). Neither
    torch's default generator nor any process-wide setting is touched.
    """

    def __init__(self, config: ModelConfig, init_params: bool = True, seed: int = 0) -> None:
        super().__init__()
        device = torch.device(config.init_device or "cpu")
        if device.type != "meta" and (
            config.flash_attention or config.attention_backend == "flash"
        ):
            require_flash()
        self.config = config
        self.cache = BufferCache()
        self.checkpoint: Callable[..., Any] = checkpointer(config)
        self.checkpointing: str | None = None
        self.run_block: Callable[..., Any] | None = None
        """A block and its inputs, in compiled code; for training passes. None: no such thing."""
        with device:
            self.transformer = self._parts(config)
        wide = None if is_uniform(config) else layer_configs(config)
        self.head_sizes = None if wide is None else [layer.head_dim for layer in wide]
        self.moment = None if config.plain_norms else self._place_norms()
        if init_params and device.type != "meta":
            self.reset_parameters(seed)

    def _parts(self, c: ModelConfig) -> nn.ModuleDict:
        rows, layers = c.embedding_rows, layer_configs(c)
        lowest, highest = layers[0], layers[-1]
        blocks = [BLOCKS[c.block_type](i, layer) for i, layer in enumerate(layers)]
        for below, block in itertools.pairwise(blocks):
            block.widen_from(below.config.d_model)
        parts = nn.ModuleDict()
        unset = torch.empty(rows, lowest.d_model)  # given, so that torch does not draw it
        parts["wte"] = nn.Embedding(rows, lowest.d_model, _weight=unset)
        if c.embedding_layer_norm:
            parts["emb_norm"] = build_norm(lowest)
        if c.weight_tying and lowest.d_model != highest.d_model:
            parts["width_out"] = linear(highest.d_model, lowest.d_model, bias=False)
        parts["ln_f"] = build_norm(lowest if c.weight_tying else highest)
        if c.block_group_size > 1:
            starts = range(0, c.n_layers, c.block_group_size)
            groups = [BlockGroup(blocks[i : i + c.block_group_size]) for i in starts]
            parts["block_groups"] = nn.ModuleList(groups)
        else:
            parts["blocks"] = nn.ModuleList(blocks)
        parts["wpe" if c.has_position_table else "position"] = build_position(lowest, self.cache)
        if not c.weight_tying:
            parts["ff_out"] = linear(highest.d_model, rows, bias=c.include_bias)
        return parts

    def _place_norms(self) -> Moment:
        moment, size = Moment(), self.config.block_group_size
        for name, module in self.named_modules():
            if isinstance(module, NoisyNorm):
                module.place(compat.ungrouped_name(name, size), moment)
        return moment

    @property
    def blocks(self) -> list[Block]:
        """All blocks in order, groups flattened."""
        c = self.config
        if c.block_group_size == 1:
            return list(self.transformer["blocks"])  # type: ignore[arg-type]
        return [block for group in self.transformer["block_groups"] for block in group]  # type: ignore

    @property
    def device(self) -> torch.device:
        return self.transformer["wte"].weight.device  # type: ignore[return-value]

    def reset_parameters(self, seed: int = 0) -> None:
        """Draws every parameter anew, each from a generator seeded by (seed, parameter name)."""
        init.initialise(self, self.config, seed)

    def forward(
        self,
        input_ids: Int[Tensor, "b t"],
        *,
        input_embeddings: Float[Tensor, "b t d"] | None = None,
        attention_mask: Shaped[Tensor, "b k"] | None = None,
        attention_bias: Shaped[Tensor, "..."] | None = None,
        doc_lens: Int[Tensor, "b n"] | None = None,
        max_doc_lens: Sequence[int] | None = None,
        past_key_values: Sequence[KeyValue] | None = None,
        use_cache: bool = False,
        last_logits_only: bool = False,
        output_hidden_states: bool = False,
        unembed: bool = True,
    ) -> OLMoOutput:
        """Logits of the next token at each position.

        Args:
            input_ids: token ids.
            input_embeddings: used instead of the embeddings of `input_ids`.
            attention_mask: 1 keeps, 0 hides a position from all queries (cached ones included).
            attention_bias: replaces the causal mask; added to the logits of attention, or, if bool
                or integer, 1 = may attend. [k, k], [b, k, k] or [b, h, k, k]. Position biases
                (ALiBi, relative) and sliding windows stay in force.
            doc_lens: lengths of the documents in each row, zero-padded; no query sees another one.
            max_doc_lens: the longest document of each row.
            past_key_values: `attn_key_values` of the positions that came before.
            use_cache: return keys and values.
            last_logits_only: only of the last position.
            output_hidden_states: return them.
            unembed: False: `logits` are the output of the final norm, for a loss that makes the
                logits itself, a part at a time (see `unembedding`).

        Raises:
            DataError: masks, lengths or caches whose shapes do not fit the input.
            ConfigError: more positions than learned position embeddings.
        """
        config, parts = self.config, self.transformer
        if past_key_values is not None and len(past_key_values) != config.n_layers:
            text = f"past_key_values has {len(past_key_values)} entries"
            raise DataError(
                f"{text}, but the model has {config.n_layers} layers. Pass attn_key_values."
            )
        past = past_key_values[0][0].shape[-2] if past_key_values else 0

        x = self.embed(input_ids, past, input_embeddings)
        if config.embedding_dropout and self.training:
            x = F.dropout(x, config.embedding_dropout)

        given = Visibility(
            attention_mask=attention_mask,
            attention_bias=attention_bias,
            doc_lens=doc_lens,
            max_doc_lens=max_doc_lens,
        )
        blocks, training = self.blocks, self.training and torch.is_grad_enabled()
        compiled = self.run_block if training else None
        layers = scopes(
            config, self.position, self.cache, x, past, given, self.head_sizes,
            dropout=config.attention_dropout if self.training else 0.0,
            softmax=self._softmax(),
            split=compiled is None,
        )  # fmt: skip
        hidden: list[Tensor] = []
        present: list[KeyValue] = []
        for layer, block in enumerate(blocks):
            run = block if compiled is None else partial(compiled, block)
            if output_hidden_states and layer % config.block_group_size == 0:
                hidden.append(x)
            before = past_key_values[layer] if past_key_values else None
            if checkpoints_block(self.checkpointing, layer) and torch.is_grad_enabled():
                x, cached = self.checkpoint(run, x, layers[layer], before, use_cache)
            else:
                x, cached = run(x, layers[layer], before, use_cache)
            if cached is not None:
                present.append(cached)
        x = x[:, -1:] if last_logits_only else x
        x = parts["ln_f"](parts["width_out"](x) if "width_out" in parts else x)
        if output_hidden_states:
            hidden.append(x)
        logits = self._logits(x) if unembed else x
        return OLMoOutput(logits, present if use_cache else None, tuple(hidden) or None)

    def embed(
        self,
        input_ids: Int[Tensor, "b t"],
        start: int,
        embeddings: Float[Tensor, "b t d"] | None = None,
    ) -> Float[Tensor, "b t d"]:
        """What goes into the lowest block, before dropout.

        Args:
            input_ids: token ids.
            start: position of the first of them.
            embeddings: used instead of theirs.

        Raises:
            ConfigError: more positions than learned position embeddings.
        """
        parts = self.transformer
        x = parts["wte"](input_ids) if embeddings is None else embeddings
        if self.config.embedding_layer_norm:
            x = parts["emb_norm"](x)
        place = self.position.embed(start, x.shape[1], x)
        if place is None:
            return x
        # A fixed table is float32, pure bf16 is not.
        return x + (place if place.dtype == x.dtype else place.to(x.dtype))

    def _softmax(self) -> torch.dtype | None:
        """What attention's softmax is told to compute in, by the narrowest layer."""
        told = {block.softmax for block in self.blocks} - {None}
        return torch.float16 if torch.float16 in told else next(iter(told), None)

    def _logits(self, x: Float[Tensor, "b t d"]) -> Float[Tensor, "b t v"]:
        tied, parts = self.config.weight_tying, self.transformer
        logits = multiply(x, parts["wte"].weight) if tied else parts["ff_out"](x)  # type: ignore
        return logits * self.unembedding.scale if self.config.scale_logits else logits

    @property
    def unembedding(self) -> Unembedding:
        """What makes the logits, for a loss that makes them itself."""
        config = self.config
        head: Any = self.transformer["wte" if config.weight_tying else "ff_out"]
        scale = 1 / math.sqrt(head.weight.shape[1]) if config.scale_logits else 1.0
        return Unembedding(head.weight, getattr(head, "bias", None), scale)

    @property
    def position(self) -> Any:
        return self.transformer["wpe" if "wpe" in self.transformer else "position"]

    def set_activation_checkpointing(self, strategy: str | None) -> None:
        """Recompute activations in the backward pass, by one of `checkpointing.STRATEGIES`."""
        checkpoints_block(strategy, 0)
        self.checkpointing = strategy
        for block in self.blocks:
            block.fine_grained = self.checkpoint if strategy == "fine_grained" else None

    def fsdp_wrap_policy(self, strategy: str | None) -> Callable[..., bool] | None:
        """FSDP's auto_wrap_policy by a strategy of `ParallelConfig`; None wraps the root alone."""
        return sharding.wrap_policy(self, strategy)

    def num_params(self, include_embedding: bool = True) -> int:
        """Parameters; without wte and wpe if so asked (an untied head always counts)."""
        return sum(
            parameter.numel()
            for name, parameter in self.named_parameters()
            if include_embedding or not (".wte." in name or ".wpe." in name)
        )

    @contextmanager
    def recording(self) -> Iterator[Recorder]:
        """Measures the passes within: largest attention logit and activation RMS of each layer."""
        record = Recorder()
        blocks = self.blocks
        for block in blocks:
            block.recorder = record
        try:
            yield record
        finally:
            for block in blocks:
                block.recorder = None

    def make_state_dict_compatible(
        self, state_dict: dict[str, Any]
    ) -> tuple[dict[str, Any], dict[str, set[str]]]:
        """See `ablate.model.compat`."""
        return compat.make_state_dict_compatible(state_dict, self.config)

    def generate(
        self, input_ids: Int[Tensor, "b t"], **options: Any
    ) -> generate.OLMoGenerateOutput:
        """See `ablate.model.generate.generate`."""
        return generate.generate(self, input_ids, **options)
