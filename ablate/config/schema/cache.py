"""The key/value cache of generation and of long contexts: what is held, and what is let go."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, get_args

from ablate.config.typed import check_types, require

__all__ = ["POLICIES", "CacheConfig"]

Policy = Literal["full", "window", "lru", "heavy_hitter", "dynamic", "dynamic_as_published"]
POLICIES: tuple[str, ...] = get_args(Policy)


@dataclass(frozen=True, kw_only=True)
class CacheConfig:
    """Measured after training, on held-out text read as one stream; training never sees it."""

    name: Literal["none", Policy] = "none"
    """none: nothing is measured. full: nothing is let go. window: the oldest goes. lru: what no
    query attended to for longest. heavy_hitter: the least attention in all (arXiv 2306.14048).
    dynamic: a mixture of recency and attention. dynamic_as_published: a newcomer stays only where
    it beats the least recently used.
    """
    budget: int = 128
    """Tokens a layer."""
    recent: int = 32
    """The newest tokens, which heavy_hitter and dynamic never let go."""
    sinks: int = 4
    """The first tokens, likewise (arXiv 2309.17453)."""
    mixture: float = 0.5
    """Of dynamic: 1 is recency alone, 0 attention alone."""
    tokens: int = 1024
    """Of the stream that is measured."""
    chunk: int = 16
    """Tokens between two evictions."""
    preheat: int = 0
    """So many of the most frequent n-grams of the training text have their keys and values computed
    once, for prompts that begin with one; 0: nothing is preheated, and nothing of it measured.
    """
    preheat_n: list[int] = field(default_factory=lambda: [3])
    """Tokens of an n-gram; of several lengths, so many n-grams of each, and the longest holds."""
    prompts: int = 64
    """Held-out prompts on which preheating is measured."""
    prompt_tokens: int = 32
    """Tokens of each."""

    def __post_init__(self) -> None:
        check_types(self, "cache")
        for name in ("budget", "chunk"):
            v = getattr(self, name)
            require(v >= 1, f"cache.{name}", v, "must be at least 1")
        for name in ("recent", "sinks"):
            v = getattr(self, name)
            require(v >= 0, f"cache.{name}", v, "must not be negative")
        require(self.tokens >= 2, "cache.tokens", self.tokens, "must be at least 2")
        v = self.mixture
        require(0 <= v <= 1, "cache.mixture", v, "must lie between 0 and 1")
        if self.name in ("heavy_hitter", "dynamic"):
            protected = self.recent + self.sinks
            remedy = "Raise it, or lower cache.recent or cache.sinks"
            reason = f"leaves nothing beside the {protected} protected tokens"
            require(self.budget > protected, "cache.budget", self.budget, reason, remedy)
        self._check_preheating()

    def _check_preheating(self) -> None:
        v = self.preheat
        require(v >= 0, "cache.preheat", v, "must not be negative", "0 preheats nothing")
        for name in ("prompts", "prompt_tokens"):
            v = getattr(self, name)
            require(v >= 1, f"cache.{name}", v, "must be at least 1")
        lengths = self.preheat_n
        whole = bool(lengths) and min(lengths) >= 1 and len(set(lengths)) == len(lengths)
        reason = "must list different lengths of at least 1 token"
        require(whole, "cache.preheat_n", lengths, reason, "[3] is the default")
        if self.preheat:
            reason = f"leaves no token of prompts of {self.prompt_tokens} (cache.prompt_tokens)"
            remedy = "Raise cache.prompt_tokens, or lower it"
            short = max(lengths) < self.prompt_tokens
            require(short, "cache.preheat_n", lengths, reason, remedy)

    @property
    def measures(self) -> bool:
        """Whether anything is to be measured."""
        return self.name != "none" or self.preheat > 0
