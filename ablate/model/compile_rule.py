"""Whether a trial is compiled, decided without torch and from its configuration alone.

So every start of a trial decides the same, on every machine of a kind, whatever lies in a cache; a
warm one only makes the decision cheaper. `train.compile=auto` compiles where the run is long enough
to win back, twice over, what the first compilation costs:

    steps · seconds of an eager step · share that compiled code saves  >=  2 · seconds of compiling

| kind | FLOP/s of eager steps | the share saved | seconds of compiling |
|------|-----------------------|-----------------|----------------------|
| CPU  | 60 G a thread         | 0.1             | 30                   |
| CUDA | 200 T, and 1.5 ms for the launches of each layer | 0.2 | 60            |

Those of the CPU were measured (docs/performance.md; the rate on a CPU of another kind), the share
taken lower. Those of CUDA are an estimate: nobody has measured them for this program.
"""

from __future__ import annotations

from dataclasses import dataclass

from ablate.config.schema import TrialConfig
from ablate.errors import ConfigError
from ablate.model.config import ModelConfig
from ablate.model.count import flops_per_token

__all__ = ["Decision", "check_mode", "decide"]


@dataclass(frozen=True)
class Economy:
    """Of one kind of device."""

    rate: float
    """FLOP/s of eager steps; of a CPU, a thread."""
    launches: float
    """Seconds that a layer takes at least, forward and backward."""
    saved: float
    """Share of an eager step that compiled code does not need."""
    cold: float
    """Seconds that compiling takes where nothing of it is cached."""


ECONOMIES = {
    "cpu": Economy(rate=60e9, launches=0.0, saved=0.1, cold=30.0),
    "cuda": Economy(rate=200e12, launches=1.5e-3, saved=0.2, cold=60.0),
}
MARGIN = 2.0


@dataclass(frozen=True)
class Decision:
    compiled: bool
    reason: str


def decide(trial: TrialConfig, config: ModelConfig, device: str) -> Decision:
    """Whether the trial's steps are compiled on a device of this kind (cpu, cuda, mps)."""
    if trial.train.compile != "auto":
        return Decision(
            trial.train.compile, "asked for" if trial.train.compile else "not asked for"
        )
    never = _never(trial, config, device)
    if never:
        return Decision(False, never)
    economy = ECONOMIES[device]
    c = trial.train
    length = c.sequence_length or config.max_sequence_length
    work = flops_per_token(config, length) * c.batch_size * length
    parts = c.batch_size // (c.micro_batch_size or c.batch_size)
    rate = economy.rate * (c.threads if device == "cpu" else 1)
    step = max(work / rate, economy.launches * config.n_layers * parts)
    saving, cost = c.steps * step * economy.saved, MARGIN * economy.cold
    verb = "wins back" if saving >= cost else "would not win back"
    about = f"{c.steps:,} steps of about {step:.3g} s, of which compiled code saves "
    reason = f"{about}{saving:,.0f} s in all, {verb} {MARGIN:g} x {economy.cold:.0f} s of compiling"
    return Decision(saving >= cost, reason)


def check_mode(trial: TrialConfig, device: str) -> None:
    """Raises ConfigError for CUDA graphs on a device of another kind."""
    mode = trial.train.compile_mode
    if mode != "default" and device != "cuda":
        reason = f"records CUDA graphs, and this trial would train on {device}"
        raise ConfigError("train.compile_mode", mode, reason, "Set it to default")


def _never(trial: TrialConfig, config: ModelConfig, device: str) -> str | None:
    if device not in ECONOMIES:
        return f"not done on {device}"
    if config.norm_noise:
        return "norm_noise draws from generators of its own, which cannot be traced"
    if trial.parallel.divides:
        return f"not there yet with parallel={trial.parallel.name}"
    if trial.batching.name == "dynamic":
        return "batching=dynamic has batches of many shapes"
    return None
