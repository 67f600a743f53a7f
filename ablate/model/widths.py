"""Layers of unequal width: a narrow bottom and a wide top, or the reverse. No torch here.

A layer of width w has the model's number of heads, each w / n_heads wide, and an MLP in proportion:
it is built from a configuration of its own, the model's with another `d_model`. The embedding is as
wide as the lowest layer. Where the width changes, the upper block begins with a linear projection
(`width_proj`, no bias); with a tied head, one leads back to the embedding (`width_out`).

`width_taper` is the lowest width over the highest. The widths fall or rise in `width_segments`
steps of equal depth, or in one step above the foundation (`foundation_layers`). They are chosen so
that the whole model, projections included, has the parameters (or FLOPs a token, at
max_sequence_length) of the uniform one within 1 %: widths first, in whole pairs a head, then the
MLPs.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from ablate.errors import ConfigError

if TYPE_CHECKING:
    from ablate.model.config import ModelConfig

__all__ = ["TOLERANCE", "is_uniform", "layer_configs", "resolved", "tapered_widths"]

TOLERANCE = 0.01
"""Largest relative distance from the uniform model's parameters or FLOPs."""
WIDEST = 3
"""Most that a layer may be wider than the uniform model's."""
RATIO = math.log(1.25)
"""Most that the ratio of widths may be off."""
AROUND = 4
"""Choices of widths that are tried on either side of the uniform model's size."""
MLP = (0.5, 2.0)
"""Range of the MLP's share of the width, in units of the uniform model's."""

_CACHE: dict[str, ModelConfig] = {}


def is_uniform(c: ModelConfig) -> bool:
    """Whether every layer is `d_model` wide."""
    return c.width_taper == 1 and all(w == c.d_model for w in c.layer_widths or ())


def resolved(c: ModelConfig) -> ModelConfig:
    """The same model with each layer's width written out in `layer_widths`, and no taper.

    Raises:
        ConfigError: where no widths have the uniform model's size.
    """
    if c.width_taper == 1:
        return c
    key = repr(c)
    if key not in _CACHE:
        if len(_CACHE) > 1000:
            _CACHE.clear()
        _CACHE[key] = _solved(c)
    return _CACHE[key]


def layer_configs(c: ModelConfig) -> list[ModelConfig]:
    """What each layer is built from; `c` itself where it is as wide as the model."""
    if is_uniform(c):
        return [c] * c.n_layers
    explicit = resolved(c)
    assert explicit.layer_widths is not None
    by_width = {w: _of_width(explicit, w) for w in set(explicit.layer_widths)}
    return [by_width[w] for w in explicit.layer_widths]


def _of_width(c: ModelConfig, width: int) -> ModelConfig:
    hidden = c.hidden_size if width == c.d_model else _even(c.hidden_size * width / c.d_model)
    return c.replace(
        d_model=width,
        mlp_hidden_size=hidden,
        layer_widths=None,
        foundation_layers=c.foundation_layers if c.norm_noise else None,
    )


def tapered_widths(c: ModelConfig, widest: float) -> list[int]:
    """Each layer's width where the widest has about `widest`, in multiples that heads take."""
    shape, unit = _shape(c), _unit(c)
    scale = widest / max(shape)
    return [max(unit, round(scale * f / unit) * unit) for f in shape]


def _shape(c: ModelConfig) -> list[float]:
    """Widths in units of the highest layer's."""
    n, k = c.n_layers, c.foundation_layers
    if k is not None:
        return [c.width_taper if layer < k else 1.0 for layer in range(n)]
    steps = min(c.width_segments, n)
    at = [layer * steps // n / (steps - 1) for layer in range(n)]
    return [c.width_taper + (1 - c.width_taper) * p for p in at]


def _unit(c: ModelConfig) -> int:
    """Every head an even number, and every segment of a norm a whole one."""
    return math.lcm(2 * c.n_heads, c.norm_segments or 1)


class _Candidate(NamedTuple):
    distance: float
    """Of its MLPs' share of the width from the uniform model's, in logarithms."""
    model: ModelConfig


def _solved(c: ModelConfig) -> ModelConfig:
    if c.width_match == "none":
        shape = _shape(c)
        widest = c.d_model * len(shape) * max(shape) / sum(shape)
        widths = tapered_widths(c, widest)
        if not _keeps_ratio(c, widths):
            raise _none_fits(c, "nearly that ratio")
        return _written_out(c, widths, c.hidden_size)
    target, best = _cost(c, _uniform(c)), None
    choices = list(_choices(c))
    # The size grows with the width, so what fits lies around where it crosses the target.
    at = bisect.bisect(
        choices, target, key=lambda widths: _cost(c, _written_out(c, widths, c.hidden_size))
    )
    for widths in choices[max(0, at - AROUND) : at + AROUND]:
        found = _fitted(c, widths, target)
        if found is not None and (best is None or found.distance < best.distance):
            best = found
    if best is None:
        what = "FLOPs" if c.width_match == "flops" else "parameters"
        raise _none_fits(c, f"it and the uniform model's {what} within {TOLERANCE:.0%}")
    return best.model


def _none_fits(c: ModelConfig, what: str) -> ConfigError:
    reason = f"finds no widths, in multiples of {_unit(c)}, that have {what}"
    remedy = "Choose a ratio nearer to 1, fewer heads, width_match=none, or layer_widths"
    return ConfigError("model.width_taper", c.width_taper, reason, remedy)


def _choices(c: ModelConfig) -> Iterator[list[int]]:
    unit, seen = _unit(c), set()
    for widest in range(c.d_model // unit * unit, WIDEST * c.d_model + 1, unit):
        widths = tapered_widths(c, widest)
        if tuple(widths) not in seen and _keeps_ratio(c, widths):
            seen.add(tuple(widths))
            yield widths


def _keeps_ratio(c: ModelConfig, widths: list[int]) -> bool:
    """Narrow layers come in coarse multiples: another ratio than was asked for is none."""
    asked = abs(math.log(c.width_taper))
    reached = math.log(widths[0] / widths[-1]) * (1 if c.width_taper > 1 else -1)
    return abs(reached - asked) <= min(RATIO, asked / 2)


def _fitted(c: ModelConfig, widths: list[int], target: int) -> _Candidate | None:
    """These widths with the MLPs that hit the target. Cost is linear in the MLPs' width."""
    own = c.hidden_size
    once, twice = (_cost(c, _written_out(c, widths, _even(own * m))) for m in (1, 2))
    share = 1 + (target - once) / (twice - once)
    if not MLP[0] <= share <= MLP[1]:
        return None
    model = _written_out(c, widths, _even(own * share))
    if abs(_cost(c, model) - target) > TOLERANCE * target:
        return None
    return _Candidate(abs(math.log(share)), model)


def _uniform(c: ModelConfig) -> ModelConfig:
    kept = c.foundation_layers if c.norm_noise else None
    return c.replace(width_taper=1.0, foundation_layers=kept)


def _written_out(c: ModelConfig, widths: list[int], hidden: int) -> ModelConfig:
    kept = c.foundation_layers if c.norm_noise else None
    return c.replace(
        layer_widths=widths, width_taper=1.0, mlp_hidden_size=hidden, foundation_layers=kept
    )


def _cost(c: ModelConfig, model: ModelConfig) -> int:
    from ablate.model.count import flops_per_token, parameters

    if c.width_match == "flops":
        return flops_per_token(model, c.max_sequence_length)
    return parameters(model)


def _even(size: float) -> int:
    return max(2, round(size / 2) * 2)
