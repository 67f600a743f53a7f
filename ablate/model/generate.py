"""Text from a model: beam search over cached keys and values, greedy or sampling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from ablate.config.typed import require
from ablate.model.decoding import Memory, choose_memory
from ablate.model.sampling import Constraint, Greedy, Sampler, Scorer, SumOfLogProbs

if TYPE_CHECKING:
    from ablate.config.schema.cache import CacheConfig
    from ablate.model.preheat import Preheated
    from ablate.model.transformer import OLMo

__all__ = ["OLMoGenerateOutput", "generate"]


class OLMoGenerateOutput(NamedTuple):
    token_ids: Int[Tensor, "b beams t"]
    """The new tokens, best sequence first; a sequence that ended repeats EOS."""
    scores: Float[Tensor, "b beams"]


@torch.no_grad()
def generate(
    model: OLMo,
    input_ids: Int[Tensor, "b t"],
    *,
    attention_mask: Shaped[Tensor, "b t"] | None = None,
    attention_bias: Shaped[Tensor, "..."] | None = None,
    cache: CacheConfig | Preheated | None = None,
    max_steps: int = 10,
    min_steps: int = 0,
    beam_size: int = 1,
    per_node_beam_size: int | None = None,
    sampler: Sampler | None = None,
    constraints: Sequence[Constraint] = (),
    final_sequence_scorer: Scorer | None = None,
) -> OLMoGenerateOutput:
    """The `beam_size` best continuations that beam search finds, without the prompt.

    Each step, the first included, `sampler` chooses `per_node_beam_size` continuations of every
    beam, and the best `beam_size` of all live on. With one beam that is greedy decoding, or plain
    sampling.

    Args:
        model: put into eval mode for the time being.
        input_ids: the prompts; pad on the left, with an attention_mask.
        attention_mask: 1 keeps a position of the prompt, 0 hides it.
        attention_bias: as in `OLMo.forward`; new tokens see everything before them.
        cache: a bounded key/value cache (one a prompt, or beam), by the policy that it names, or
            beginnings of prompts that were read beforehand. With a budget that is never reached,
            and with any beginnings, the tokens are those of None, which holds everything.
        max_steps: new tokens at most.
        min_steps: EOS is ruled out before this many tokens.
        beam_size: sequences kept.
        per_node_beam_size: candidates of each; beam_size where it is None.
        sampler: `Greedy()` where it is None; others in `ablate.model.sampling`.
        constraints: rule out tokens.
        final_sequence_scorer: ranks the results; the sum of log-probabilities where it is None.

    Raises:
        ConfigError: numbers below 1, and caches that do not fit (see `decoding.choose_memory` and
            `streaming.Stream`).
    """
    require(max_steps > 0, "max_steps", max_steps, "must be at least 1")
    require(beam_size > 0, "beam_size", beam_size, "must be at least 1")
    per_node = beam_size if per_node_beam_size is None else per_node_beam_size
    require(per_node > 0, "per_node_beam_size", per_node, "must be at least 1")
    if attention_bias is not None:
        attention_bias = _extended(attention_bias, input_ids.shape[1] + max_steps)
    memory = choose_memory(model, cache, attention_mask, attention_bias)
    eos = model.config.eos_token_id
    search = _Search(memory, eos, beam_size, per_node, min_steps, sampler or Greedy(), constraints)
    was_training = model.training
    model.eval()
    try:
        tokens, scores = search.run(input_ids, max_steps)
    finally:
        model.train(was_training)
    scores = (final_sequence_scorer or SumOfLogProbs())(tokens, scores, eos)
    scores, order = scores.sort(dim=-1, descending=True, stable=True)
    return OLMoGenerateOutput(tokens.gather(1, order[..., None].expand_as(tokens)), scores)


class _Search:
    def __init__(
        self,
        memory: Memory,
        eos: int,
        beams: int,
        per_node: int,
        min_steps: int,
        sampler: Sampler,
        constraints: Sequence[Constraint],
    ) -> None:
        self.memory, self.eos = memory, eos
        self.beams, self.per_node, self.min_steps = beams, per_node, min_steps
        self.sampler, self.constraints = sampler, constraints

    def run(self, prompt: Tensor, max_steps: int) -> tuple[Tensor, Tensor]:
        b, beams = prompt.shape[0], self.beams
        log_probs = self._next(prompt, prompt.new_empty(b, 0))
        scores, last = self.sampler(log_probs, beams)  # both [b, beams]
        scores, best = scores.sort(dim=-1, descending=True)
        tokens = last.gather(1, best)[..., None]
        self.memory.spread(beams)
        for _ in range(max_steps - 1):
            if bool((tokens[..., -1] == self.eos).all()):
                break
            flat = tokens.flatten(0, 1)
            log_probs = self._ended(self._next(flat[:, -1:], flat), flat)
            gain, token = self.sampler(log_probs, self.per_node)  # [b·beams, per_node]
            total = (gain.view(b, beams, -1) + scores[..., None]).flatten(1)
            scores, chosen = total.topk(beams, dim=-1)
            origin = chosen // self.per_node
            token = token.view(b, -1).gather(1, chosen)
            tokens = torch.cat(
                (tokens.gather(1, origin[..., None].expand_as(tokens)), token[..., None]), -1
            )
            if beams > 1:
                first = torch.arange(b, device=origin.device)[:, None] * beams
                self.memory.reorder((origin + first).flatten())
        return tokens, scores

    def _next(self, inputs: Tensor, tokens: Tensor) -> Float[Tensor, "n v"]:
        """Log-probabilities of the next token; `tokens` are the new ones so far."""
        log_probs = self.memory.read(inputs).float().log_softmax(-1)
        for constraint in self.constraints:
            log_probs = constraint(log_probs, tokens)
        if tokens.shape[1] < self.min_steps:
            log_probs[:, self.eos] = -torch.inf
        return log_probs

    def _ended(self, log_probs: Tensor, tokens: Tensor) -> Tensor:
        """A sequence that has ended goes on with EOS, at no cost."""
        forced = torch.full_like(log_probs[:1], -torch.inf)
        forced[:, self.eos] = 0.0
        return torch.where(tokens[:, -1:] == self.eos, forced, log_probs)


def _extended(bias: Tensor, length: int) -> Shaped[Tensor, "#b #h k k"]:
    """The bias of a prompt, with rows for new tokens, which see all that came before."""
    bias = bias[None, None] if bias.ndim == 2 else bias[:, None] if bias.ndim == 3 else bias
    if not bias.is_floating_point():
        bias = bias != 0
    held = bias.shape[-1]
    if held >= length:
        return bias
    hidden = torch.ones(length, length, dtype=torch.bool, device=bias.device).triu(1)
    if bias.dtype == torch.bool:
        whole = ~hidden
    else:
        whole = torch.zeros(length, length, dtype=bias.dtype, device=bias.device)
        whole = whole.masked_fill(hidden, torch.finfo(bias.dtype).min)
    whole = whole.expand(*bias.shape[:2], -1, -1).clone()
    whole[:, :, :held, :held] = bias
    return whole
