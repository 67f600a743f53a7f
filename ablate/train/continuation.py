"""Text from a trial: its newest weights, its tokenizer, and a cache of one's choice."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from ablate.config.schema import CacheConfig, TrialConfig
from ablate.config.typed import require
from ablate.data import Data, open_data, preheated_ngrams
from ablate.errors import StudyError
from ablate.model import ModelConfig, OLMo
from ablate.model.preheat import Preheated
from ablate.model.sampling import Greedy, Multinomial, Sampler, TopK, TopP
from ablate.rundir import TrialDir
from ablate.train.checkpoint import read_newest

__all__ = ["Continuation", "Wish", "continue_text"]


@dataclass(frozen=True, kw_only=True)
class Wish:
    """How a text is to be continued."""

    tokens: int = 64
    beams: int = 1
    temperature: float | None = None
    """None, with top_k and top_p None: the most probable token each time."""
    top_k: int | None = None
    top_p: float | None = None
    seed: int = 0
    cache: CacheConfig = field(default_factory=CacheConfig)

    def __post_init__(self) -> None:
        require(self.tokens >= 1, "--tokens", self.tokens, "must be at least 1")
        require(self.beams >= 1, "--beams", self.beams, "must be at least 1")
        both = self.top_k is not None and self.top_p is not None
        require(not both, "--top-p", self.top_p, "contradicts --top-k", "Give one of them")
        reason = "preheats keys that no query has attended to, which a bounded cache goes by"
        remedy = "Set cache.name=none for preheating, or cache.preheat=0"
        ok = self.cache.name == "none" or not self.cache.preheat
        require(ok, "cache.preheat", self.cache.preheat, reason, remedy)

    def sampler(self, device: torch.device) -> Sampler:
        if self.temperature is None and self.top_k is None and self.top_p is None:
            return Greedy()
        options: dict[str, Any] = {
            "temperature": 1.0 if self.temperature is None else self.temperature,
            "generator": torch.Generator(device).manual_seed(self.seed),
        }
        if self.top_k is not None:
            return TopK(k=self.top_k, **options)
        return Multinomial(**options) if self.top_p is None else TopP(p=self.top_p, **options)


@dataclass(frozen=True, kw_only=True)
class Continuation:
    texts: list[str]
    """Of each beam, the best first, without the prompt."""
    scores: list[float]
    """Log-probabilities of the continuations, in nats."""
    step: int
    """Of the weights."""
    attempt: int


def continue_text(trial: TrialDir, prompt: str, wish: Wish) -> Continuation:
    """Continues `prompt`; an empty one begins a document.

    Raises:
        StudyError: the trial has no weights.
        ConfigError, DataError: caches that do not fit, data whose tokenizer is not known.
    """
    config = TrialConfig.from_mapping(trial.config())
    device = torch.device("cpu")
    found = read_newest(trial, device)
    if found is None or found.model is None:
        raise StudyError(
            f"{trial.id} has no weights: it has no checkpoint yet, or was trained with "
            "train.keep_final=false, or they were pruned. Train it with train.keep_final=true."
        )
    data = open_data(config.data, eos_token_id=config.model["eos_token_id"])
    tokenizer = data.tokenizer()
    own = ModelConfig.from_mapping(config.model).replace(init_device=None)
    model = OLMo(own, init_params=False)
    model.load_state_dict({k: v.float() for k, v in found.model.items()})
    model.eval()
    ids = tokenizer.encode([prompt])[0].tolist() or [model.config.eos_token_id]
    output = model.generate(
        torch.tensor([ids]),
        cache=_cache(model, data, wish.cache),
        max_steps=wish.tokens,
        beam_size=wish.beams,
        sampler=wish.sampler(device),
    )
    ended = [_until(row, model.config.eos_token_id) for row in output.token_ids[0].tolist()]
    return Continuation(
        texts=[tokenizer.decode(row) for row in ended],
        scores=output.scores[0].tolist(),
        step=found.step,
        attempt=found.attempt,
    )


def _cache(model: OLMo, data: Data, config: CacheConfig) -> CacheConfig | Preheated | None:
    if not config.preheat:
        return None if config.name == "none" else config
    return Preheated(model, preheated_ngrams(data, config))


def _until(tokens: list[int], end: int) -> list[int]:
    return tokens[: tokens.index(end)] if end in tokens else tokens
