"""What is measured of the finished model beside its validation loss."""

from __future__ import annotations

from dataclasses import dataclass

from ablate.config.typed import check_types, require

__all__ = ["EvaluateConfig"]


@dataclass(frozen=True, kw_only=True)
class EvaluateConfig:
    """Robustness: losses under noise and on other text, once, at the last step."""

    token_noise: float | None = None
    """Share of the validation's input tokens that others replace; the labels stay. null: none."""
    shifted_data: str | None = None
    """A corpus, or a path, whose text is validated too, by the same tokenizer. null: none."""

    def __post_init__(self) -> None:
        check_types(self, "evaluate")
        share = self.token_noise
        ok = share is None or 0 < share < 1
        remedy = "0.1 replaces a tenth of the tokens, null none"
        require(ok, "evaluate.token_noise", share, "must lie in (0, 1)", remedy)
        named = self.shifted_data
        ok = named is None or bool(named.strip())
        remedy = "Name a corpus or a path; null: none"
        require(ok, "evaluate.shifted_data", repr(named), "is empty", remedy)

    @property
    def asked(self) -> bool:
        return self.token_noise is not None or self.shifted_data is not None
