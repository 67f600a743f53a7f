"""A statement from elsewhere that a sweep tests: the `claim:` of its section, typed and frozen.

Metric, direction, size and arms are fixed before the runs, as the decision rule is; `analysis`
reads them off the manifest.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from ablate.config.typed import build, check_types, closest, require
from ablate.errors import ConfigError

if TYPE_CHECKING:
    from ablate.plan.study_plan import PlannedArm
    from ablate.plan.sweep import DecideConfig

__all__ = ["ClaimConfig", "freeze_claims", "read_claims"]

PLAIN = ("val/bpb", "val/loss", "val/perplexity", "train/loss", "seconds", "tokens_per_second",
         "peak_memory", "parameters", "flops", "diverged")  # fmt: skip
FAMILIES = ("model/", "spikes/", "cache/", "preheat/", "batching/", "robust/")
"""Beginnings of other names in a trial's summary."""
SHARE = 0.2
"""Of a claimed size: a smaller effect is as good as none, where no margin is given."""


@dataclass(frozen=True, kw_only=True)
class ClaimConfig:
    """Who says that what changes which metric, by how much."""

    source: str
    statement: str
    """In the source's own words."""
    of: str
    """An arm: its name, or an override or factor=label that it alone has."""
    against: str | None = None
    """Likewise; null: the arm's reference."""
    metric: str | None = None
    """Of a trial's summary, or `diverged`; null: decide.metric."""
    relative: float | None = None
    """The claimed change as a share of `against`, signed; of no_worse the margin."""
    absolute: float | None = None
    """The same in units of the metric."""
    direction: Literal["lower", "higher", "no_worse"] | None = None
    """null: the sign of the size. no_worse: a test of non-inferiority."""
    rates: Literal["best", "all"] | float = "best"
    """Of a bracket of learning rates: the best one, the mean over all, or one of them."""
    margin: float | None = None
    """Of the equivalence that contradicts, on the scale of the size; null: see `freeze_claims`."""
    untestable: str | None = None
    """Why it cannot be tested as worded; the other fields are then those of `nearest`."""
    nearest: str | None = None
    """The nearest statement that can be tested, in words."""

    def __post_init__(self) -> None:
        check_types(self, "sweep.claim")
        for name in ("source", "statement", "of"):
            value = getattr(self, name)
            require(bool(value.strip()), f"sweep.claim.{name}", repr(value), "is empty")
        self._check_metric()
        self._check_size()
        bare = (self.untestable is None) == (self.nearest is None)
        field = "nearest" if self.nearest is None else "untestable"
        remedy = "Give both: why it cannot be tested as worded, and what can"
        require(bare, f"sweep.claim.{field}", None, "is missing beside the other", remedy)

    def _check_metric(self) -> None:
        name = self.metric
        if name is None:
            return
        known = name in PLAIN or any(name.startswith(f) and name != f for f in FAMILIES)
        reason = "must be one of " + ", ".join(PLAIN) + ", or begin with " + ", ".join(FAMILIES)
        require(known, "sweep.claim.metric", name, reason, closest(name, PLAIN, listed=True))

    def _check_size(self) -> None:
        both = self.relative is not None and self.absolute is not None
        require(not both, "sweep.claim.absolute", self.absolute, "contradicts relative",
                "Give one of them")  # fmt: skip
        for name in ("relative", "absolute", "margin"):
            v = getattr(self, name)
            ok = v is None or (math.isfinite(v) and v != 0)
            require(ok, f"sweep.claim.{name}", v, "must be a number other than 0",
                    "For a direction alone leave the size out, and set direction")  # fmt: skip
        v = self.relative
        require(v is None or v > -1, "sweep.claim.relative", v, "must be greater than -1",
                "-0.15 is 15 % less")  # fmt: skip
        v, size = self.margin, self.size
        require(v is None or v > 0, "sweep.claim.margin", v, "must be greater than 0")
        if size is None:
            ok = self.direction in ("lower", "higher")
            require(ok, "sweep.claim.direction", self.direction, "says nothing without a size",
                    "Give relative or absolute, or set direction to lower or higher")  # fmt: skip
            return
        name = "absolute" if self.relative is None else "relative"
        if self.direction == "no_worse":
            require(size > 0, f"sweep.claim.{name}", size,
                    "is the margin of no_worse, so it must be greater than 0")  # fmt: skip
            require(v is None, "sweep.claim.margin", v, f"is not read: {name} is the margin")
        elif self.direction is not None:
            ok = (size < 0) == (self.direction == "lower")
            remedy = "Drop direction: the sign of the size says it"
            require(ok, "sweep.claim.direction", self.direction, f"contradicts {name}={size:g}",
                    remedy)  # fmt: skip

    @property
    def size(self) -> float | None:
        return self.absolute if self.relative is None else self.relative


def read_claims(written: Any) -> list[ClaimConfig]:
    """The claims of a sweep: none, one mapping, or a list of them.

    Raises:
        ConfigError: naming the field below sweep.claim.
    """
    if written is None:
        return []
    entries = list(written) if isinstance(written, list | tuple) else [written]
    claims = []
    for entry in entries:
        if not isinstance(entry, Mapping):
            raise ConfigError(
                "sweep.claim",
                repr(entry),
                "must be a mapping, or a list of mappings",
                "In words it goes into `statement`, beside `source`, `of` (the arm), and "
                "`direction`, `relative` or `absolute`",
            )
        claims.append(build(ClaimConfig, entry, "sweep.claim"))
    return claims


def freeze_claims(
    claims: Sequence[ClaimConfig],
    decide: DecideConfig,
    arms: Sequence[PlannedArm],
    base: Sequence[str],
    rates: Sequence[float] = (),
) -> list[dict[str, Any]] | None:
    """As the manifest holds them: arms by name, nothing left open.

    The margin is decide's where the claim is an absolute one about the metric that decides (or has
    a direction only); a fifth of the claimed size elsewhere.

    Args:
        claims: of the sweep.
        decide: the rule of the study.
        arms: planned, the baseline first.
        base: overrides that every arm starts from.
        rates: that some arm tries.

    Raises:
        ConfigError: where `of` or `against` fits no arm, or several, or measures no such metric;
            for a learning rate that is not tried.
    """
    frozen = []
    for claim in claims:
        of = _arm("of", claim.of, arms, base)
        if claim.against is not None:
            against = _arm("against", claim.against, arms, base)
        else:
            reference = next(arm.reference for arm in arms if arm.name == of)
            require(reference is not None, "sweep.claim.of", claim.of, "is the baseline, which has "
                    "no reference", "Name the other arm in sweep.claim.against")  # fmt: skip
            against = str(reference)
        tried = claim.rates in ("best", "all") or claim.rates in rates
        reason = "is none of the learning rates that are tried"
        known = f"They are {', '.join(f'{r:g}' for r in rates)}" if rates else "Set sweep.lr"
        require(tried, "sweep.claim.rates", claim.rates, reason, known)
        require(of != against, "sweep.claim.against", claim.against, "is the same arm as `of`")
        metric, margin = claim.metric or decide.metric, claim.margin
        _check_measured(metric, [arm for arm in arms if arm.name in (of, against)])
        if margin is None and claim.direction != "no_worse":
            if metric == decide.metric and claim.relative is None:
                margin = decide.margin or decide.smallest_effect
            elif claim.size is not None:
                margin = SHARE * abs(claim.size)
        direction = claim.direction or ("lower" if (claim.size or 0) < 0 else "higher")
        filled = {"metric": metric, "margin": margin, "direction": direction}
        frozen.append(asdict(claim) | filled | {"of": of, "against": against})
    return frozen or None


def _check_measured(metric: str, arms: Sequence[PlannedArm]) -> None:
    """Robustness is measured only where it is asked for."""
    for kind, field in (("noise", "token_noise"), ("shift", "shifted_data")):
        if metric not in (f"robust/{kind}_loss", f"robust/{kind}_excess"):
            continue
        for arm in arms:
            asked = arm.config["evaluate"][field] is not None
            reason = f"is not measured by {arm.name}, where evaluate.{field} is null"
            remedy = f"Set evaluate.{field} in sweep.baseline"
            require(asked, "sweep.claim.metric", metric, reason, remedy)


def _arm(field: str, word: str, arms: Sequence[PlannedArm], base: Sequence[str]) -> str:
    names = [arm.name for arm in arms]
    if word in names:
        return word
    factor, _, label = word.partition("=")
    found = [arm.name for arm in arms if arm.overrides == (word,)]
    found = found or [
        arm.name for arm in arms if word in arm.overrides or arm.levels.get(factor) == label
    ]
    if not found and word in base:
        found = names[:1]
    if len(found) != 1:
        reason = f"fits {'several arms: ' + ', '.join(found) if found else 'no arm'}"
        remedy = closest(word, names) or f"Name one of {', '.join(names)}"
        raise ConfigError(f"sweep.claim.{field}", word, reason, remedy)
    return found[0]
