"""Choosing tokens: samplers, constraints and final scores for `ablate.model.generate`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ablate.config.typed import require

__all__ = [
    "Constraint",
    "Greedy",
    "LengthNormalized",
    "Multinomial",
    "NoRepeatedNGrams",
    "Sampler",
    "Scorer",
    "SumOfLogProbs",
    "TopK",
    "TopP",
]

Choice = tuple[Float[Tensor, "n count"], Int[Tensor, "n count"]]


@runtime_checkable
class Sampler(Protocol):
    """Chooses `count` tokens for each row: their log-probabilities (untempered) and ids."""

    def __call__(self, log_probs: Float[Tensor, "n v"], count: int) -> Choice: ...


class Greedy:
    """The most probable tokens, best first."""

    def __call__(self, log_probs: Float[Tensor, "n v"], count: int) -> Choice:
        values, tokens = log_probs.topk(count, dim=-1)
        return values, tokens


@dataclass(frozen=True, kw_only=True)
class Multinomial:
    """Draws from softmax(log_probs / temperature).

    Without replacement the draws are distinct: the largest of log_probs / temperature + Gumbel
    noise have exactly the law of drawing one by one (arXiv 1903.06059).
    """

    temperature: float = 1.0
    with_replacement: bool = False
    generator: torch.Generator | None = None
    """On the model's device; torch's default one where it is None."""

    def __post_init__(self) -> None:
        require(
            self.temperature > 0, "sampler.temperature", self.temperature, "must be greater than 0"
        )

    def kept(self, logits: Float[Tensor, "n v"]) -> Float[Tensor, "n v"]:
        """The tempered logits, with -inf for the tokens that are ruled out."""
        return logits

    def __call__(self, log_probs: Float[Tensor, "n v"], count: int) -> Choice:
        logits = self.kept(log_probs / self.temperature)
        if self.with_replacement:
            tokens = torch.multinomial(
                logits.softmax(-1), count, replacement=True, generator=self.generator
            )
        else:
            noise = torch.empty_like(logits).exponential_(generator=self.generator).log().neg()
            tokens = (logits + noise).topk(count, dim=-1).indices
        # Where fewer than `count` tokens are allowed, the rest count as impossible.
        allowed = logits.gather(-1, tokens) > -torch.inf
        return log_probs.gather(-1, tokens).masked_fill(~allowed, -torch.inf), tokens


@dataclass(frozen=True, kw_only=True)
class TopK(Multinomial):
    """Draws among the k most probable tokens."""

    k: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.k > 0, "sampler.k", self.k, "must be at least 1")

    def kept(self, logits: Float[Tensor, "n v"]) -> Float[Tensor, "n v"]:
        kept = logits.topk(min(self.k, logits.shape[-1]), dim=-1)
        return torch.full_like(logits, -torch.inf).scatter(-1, kept.indices, kept.values)


@dataclass(frozen=True, kw_only=True)
class TopP(Multinomial):
    """Draws among the fewest tokens whose probability reaches p (arXiv 1904.09751)."""

    p: float = 0.9

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 < self.p <= 1, "sampler.p", self.p, "must lie in (0, 1]")

    def kept(self, logits: Float[Tensor, "n v"]) -> Float[Tensor, "n v"]:
        probs, order = logits.softmax(-1).sort(dim=-1, descending=True)
        # A token stays while those before it fall short of p: the most probable one always does.
        surplus = probs.cumsum(-1) - probs >= self.p
        return logits.masked_fill(torch.zeros_like(surplus).scatter(-1, order, surplus), -torch.inf)


@runtime_checkable
class Constraint(Protocol):
    """Rules out tokens, given what each sequence holds so far."""

    def __call__(
        self, log_probs: Float[Tensor, "n v"], tokens: Int[Tensor, "n t"]
    ) -> Float[Tensor, "n v"]: ...


@dataclass(frozen=True, kw_only=True)
class NoRepeatedNGrams:
    """No run of `n` new tokens occurs twice."""

    n: int = 3

    def __post_init__(self) -> None:
        require(self.n > 0, "constraint.n", self.n, "must be at least 1")

    def __call__(
        self, log_probs: Float[Tensor, "n v"], tokens: Int[Tensor, "n t"]
    ) -> Float[Tensor, "n v"]:
        n, have = self.n, tokens.shape[1]
        if have < n:
            return log_probs
        runs = tokens.unfold(1, n, 1)  # [rows, have - n + 1, n]
        ending = tokens[:, have - n + 1 :]
        same = (runs[..., :-1] == ending[:, None]).all(-1)
        out = log_probs.clone()
        row, run = same.nonzero(as_tuple=True)
        out[row, runs[row, run, -1]] = -torch.inf
        return out


@runtime_checkable
class Scorer(Protocol):
    """The final score of each sequence."""

    def __call__(
        self, tokens: Int[Tensor, "b beams t"], log_probs: Float[Tensor, "b beams"], eos: int
    ) -> Float[Tensor, "b beams"]: ...


class SumOfLogProbs:
    """The log-probability of the sequence."""

    def __call__(
        self, tokens: Int[Tensor, "b beams t"], log_probs: Float[Tensor, "b beams"], eos: int
    ) -> Float[Tensor, "b beams"]:
        return log_probs


@dataclass(frozen=True, kw_only=True)
class LengthNormalized:
    """Log-probability divided by length^penalty; EOS counts once."""

    penalty: float = 1.0

    def __call__(
        self, tokens: Int[Tensor, "b beams t"], log_probs: Float[Tensor, "b beams"], eos: int
    ) -> Float[Tensor, "b beams"]:
        length = (tokens != eos).sum(-1) + (tokens[..., -1] == eos)
        return log_probs / length.to(log_probs.dtype) ** self.penalty
