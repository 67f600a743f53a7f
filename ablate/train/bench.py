"""How fast one arm trains: a step by phase, and beside other people's implementations of it."""

from __future__ import annotations

import dataclasses
import itertools
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ablate.config.schema import TrialConfig
from ablate.errors import AblateError
from ablate.model.count import flops_per_token
from ablate.model.linear import has_low_precision_products
from ablate.train import peak_memory
from ablate.train.batch import to_tensors
from ablate.train.clock import alternate, ratio, spread
from ablate.train.compiling import warm_up
from ablate.train.determinism import deterministic
from ablate.train.device import choose_device, wait
from ablate.train.loader import Loader
from ablate.train.loop import accumulate_gradients, train
from ablate.train.peak_flops import peak_flops
from ablate.train.peers import PEERS, is_installed
from ablate.train.phases import PHASES
from ablate.train.record import Silence
from ablate.train.run import Run, assemble
from ablate.train.trial import device_name
from ablate.train.watch import Watch

__all__ = ["Timing", "bench_arm", "bench_peers", "peers_of"]

OF_STEP = tuple(phase for phase in PHASES if phase != "record")
"""Nothing is recorded here."""
SQUARE = 2048
"""Side of the matrices that show what a device without a data sheet can do."""


@dataclass(frozen=True, kw_only=True)
class Timing:
    """What is asked of a measurement."""

    rounds: int = 20
    warm: int = 3
    clock: str = "wall"


def bench_arm(
    config: Mapping[str, Any], timing: Timing, tell: Callable[[str], object] = lambda _: None
) -> dict[str, Any]:
    """The arm's own training loop on its own data: speed, time by phase, MFU, peak memory.

    Args:
        config: resolved.
        timing: how often; phases are always in wall time.
        tell: called after each step.

    Raises:
        ConfigError, DataError: as `assemble`.
        DivergedError: as the loop.
    """
    typed = TrialConfig.from_mapping(config)
    device = choose_device(typed.train.device)
    with deterministic(typed.train.threads):
        peak_memory.begin(device)
        run = assemble(typed, device)
        compiling = warm_up(run)
        rows = _trained(run, timing.warm + timing.rounds, tell)[timing.warm :]
        held = peak_memory.peak(device)
        peak, source = _peak_rate(run)
    tokens, length = run.tokens_per_step, run.sequence_length
    total = np.array([tokens / row["tokens_per_second"] for row in rows])
    middle = float(np.median(total))
    rate = tokens / middle
    return {
        "tokens_per_second": rate,
        "spread": spread(total),
        "step_ms": middle * 1e3,
        "phases_ms": {p: float(np.median([r[f"time/{p}"] for r in rows])) * 1e3 for p in OF_STEP},
        "mfu": rate * flops_per_token(run.model_config, length) / peak,
        "peak_flops": peak,
        "peak_flops_source": source,
        "peak_memory": held,
        "parameters": sum(p.numel() for p in run.parameters),
        "tokens_per_step": tokens,
        "attention": run.attention,
        "compiled": run.compiled is not None,
        "compile_reason": run.compiling.reason,
        "compiling": compiling,
        **_place(typed, device, timing),
    }


class _Rows(Silence):
    """The record of a bench: kept, not written."""

    def __init__(self) -> None:
        self.kept: list[dict[str, Any]] = []

    def rows(self, rows: Sequence[dict[str, Any]]) -> None:
        self.kept += rows


def _trained(run: Run, steps: int, tell: Callable[[str], object]) -> list[dict[str, Any]]:
    """Rows of the first steps of the training loop itself, with nothing between the steps:
    neither validation nor measurements nor checkpoints.
    """
    more = max(run.config.train.steps, steps + 1)  # the last step of all would validate
    never = {"validate_every": 0, "measure_every": 0, "checkpoint_every": 0}
    only = dataclasses.replace(run.config.train, steps=more, **never)
    run.config = dataclasses.replace(run.config, train=only)
    run.response.begin(run)
    record, done = _Rows(), itertools.count(1)

    def should_stop() -> str | None:
        tell("")
        return "measured" if next(done) == steps else None

    with Watch(run, record) as watch, Loader(run) as loader:
        train(run, 0, watch, loader, save=lambda _: None, should_stop=should_stop)
    return record.kept


def _peak_rate(run: Run) -> tuple[float, str]:
    """FLOP/s that this device could do at most in the products of `run`, and who says so."""
    known = peak_flops(run.device, run.config.precision.name)
    if known is not None:
        return known, f"data sheet of {device_name(run.device)}"
    dtype = run.precision.autocast_type or run.precision.weights
    low = dtype != torch.float32 and run.device.type == "cpu"
    if low and not has_low_precision_products(dtype):
        dtype = torch.float32  # as `linear.multiply` takes them there
    a = torch.randn(SQUARE, SQUARE, device=run.device, dtype=dtype)
    a, best = a / a.norm(), float("inf")
    for _ in range(5):
        began = time.perf_counter()
        a @ a
        wait(run.device)
        best = min(best, time.perf_counter() - began)
    kind = str(dtype).removeprefix("torch.")
    return 2 * SQUARE**3 / best, f"measured: {kind} product of {SQUARE} x {SQUARE} matrices"


# ---- beside others


def peers_of(config: Mapping[str, Any], names: Sequence[str] = ()) -> dict[str, str | None]:
    """Peers to why they cannot be timed beside this arm; None: they can.

    Raises:
        AblateError: where none is left, or a name is unknown.
    """
    from ablate.model import ModelConfig

    model = ModelConfig.from_mapping(config["model"])
    found: dict[str, str | None] = {}
    for name in names or PEERS:
        if name not in PEERS:
            raise AblateError(f"There is no peer {name}. Known: {', '.join(sorted(PEERS))}.")
        peer = PEERS[name]
        why = peer.objection(model) if is_installed(peer) else "is not installed"
        found[name] = why
    if all(found.values()):
        reasons = "; ".join(f"{name} {why}" for name, why in found.items())
        raise AblateError(
            f"No peer can be timed beside this arm: {reasons}. Install one (pip install "
            "transformers), or leave --peers out to measure the arm alone."
        )
    return found


def bench_peers(
    config: Mapping[str, Any],
    timing: Timing,
    names: Sequence[str],
    *,
    compiled: bool = False,
    tell: Callable[[str], object] = lambda _: None,
) -> dict[str, Any]:
    """Ours and theirs on one random batch, alternating: forward, loss, backward, fused AdamW.

    Args:
        config: resolved.
        timing: how often, and by which clock.
        names: of the peers.
        compiled: compile the peers too, by torch.compile; ours is as the configuration says.
        tell: called after each step.
    """
    typed = TrialConfig.from_mapping(config)
    device = choose_device(typed.train.device)
    with deterministic(typed.train.threads):
        run = assemble(typed, device)
        compiling = warm_up(run)
        batch = to_tensors(run.make_batch(1), device)
        ids = batch.input_ids
        run.model.train()
        steps: dict[str, Callable[[], object]] = {"ablate": lambda: _bare_step(run, batch)}
        for name in names:
            steps[name] = _peer_step(name, run, ids, compiled=compiled)
        seconds = alternate(steps, timing.rounds, warm=timing.warm, clock=timing.clock, tell=tell)
    own, tokens = seconds["ablate"], ids.numel()
    rows = []
    for name, values in seconds.items():
        middle = float(np.median(values))
        row: dict[str, Any] = {"name": name, "step_ms": middle * 1e3, "spread": spread(values)}
        row["tokens_per_second"] = tokens / middle
        if name != "ablate":
            found = ratio(values, own)
            row |= {"ratio": found.middle, "low": found.low, "high": found.high}
        rows.append(row)
    return {
        "contenders": rows,
        "tokens_per_step": tokens,
        "attention": run.attention,
        "compiled": run.compiled is not None,
        "peers_compiled": compiled,
        "compiling": compiling,
        **_place(typed, device, timing),
    }


def _bare_step(run: Run, batch: Any) -> None:
    """Without what peers do not do: no clipping, no norms, no record."""
    run.phases.begin()
    accumulate_gradients(run, batch)
    run.optimiser.step()
    run.clear_gradients()
    wait(run.device)


def _peer_step(name: str, run: Run, ids: torch.Tensor, *, compiled: bool) -> Callable[[], object]:
    peer, precision = PEERS[name], run.precision
    torch.manual_seed(0)
    model = peer.build(run.model_config).to(run.device, precision.weights)
    model.train()
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    forward: Any = torch.compile(model) if compiled else model
    rows = run.config.train.micro_batch_size or len(ids)
    parts = ids.split(rows)

    def step() -> None:
        for part in parts:
            with precision.autocast():
                loss = peer.loss(forward, part) / len(parts)
            loss.backward()
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        wait(run.device)

    return step


def _place(typed: TrialConfig, device: torch.device, timing: Timing) -> dict[str, Any]:
    return {
        "device": device_name(device),
        "threads": typed.train.threads,
        "precision": typed.precision.name,
        "torch": torch.__version__,
        "rounds": timing.rounds,
        "clock": timing.clock,
        "load": round(os.getloadavg()[0], 2),
    }
