"""One trial: assemble, resume, train, summarise."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from ablate.config.schema import TrialConfig
from ablate.model.count import flops_per_token
from ablate.model.here import instructions
from ablate.rundir import Attempt, before_last_tenth, check_frozen_data
from ablate.rundir.names import EVENTS
from ablate.spikes import recorded, score
from ablate.train import checkpoint, peak_memory
from ablate.train.causal import require_causal
from ablate.train.compiling import warm_up
from ablate.train.determinism import deterministic
from ablate.train.device import choose_device
from ablate.train.inference import measure_inference
from ablate.train.loader import Loader
from ablate.train.loop import train
from ablate.train.parallel import build_parallel
from ablate.train.peak_flops import peak_flops
from ablate.train.phases import PHASES
from ablate.train.record import Record, Silence
from ablate.train.resumption import moved, restacked
from ablate.train.run import Run, assemble
from ablate.train.stacked import Seat
from ablate.train.watch import Watch

__all__ = ["Result", "run_trial"]


@dataclass(frozen=True, kw_only=True)
class Result:
    status: Literal["done", "preempted"]
    step: int
    summary: dict[str, Any] = field(default_factory=dict)
    """Final metrics; empty unless done."""
    reason: str | None = None
    """Why it was preempted, as `should_stop` said."""


def run_trial(
    attempt: Attempt,
    config: dict[str, Any],
    *,
    should_stop: Callable[[], str | None] = lambda: None,
    on_row: Callable[[dict[str, Any]], None] | None = None,
    seat: Seat | None = None,
) -> Result:
    """Runs a trial from its newest readable checkpoint, or from the start, to its last step.

    Stopped and run again, anywhere and however often, it computes what it would have computed
    undisturbed, bit for bit (on one kind of device, with the same number of threads). Where the
    trial has several processes, each calls this, and the first writes.

    Args:
        attempt: holds the trial's lease; all that is written goes into its folder.
        config: the resolved configuration.
        should_stop: asked after each step; a string means save and return, preempted for it.
        on_row: sees each row of metrics.jsonl after it was written.
        seat: among trials that are trained as one batch, each in a thread of its own.

    Raises:
        ConfigError, DataError: before the first step.
        DivergedError: where the loss or the gradient norm is no longer finite.
    """
    typed = TrialConfig.from_mapping(config)
    parallel = build_parallel(typed)
    device = parallel.device(typed.train.device) or choose_device(typed.train.device)
    writer = Record(attempt, on_row) if parallel.leads else Silence()
    turn = contextlib.nullcontext() if seat is None else seat
    with turn, deterministic(typed.train.threads), contextlib.closing(writer) as record:
        peak_memory.begin(device)
        run = assemble(typed, device, parallel)
        check_frozen_data(attempt.trial.study_path, config, run.data.fingerprint)
        if attempt.trial.newest_checkpoint() is None:  # what has begun goes on as it began
            require_causal(typed, run.model_config)
        if seat is not None:
            seat.take(run)
            attempt.note(**seat.facts)
        start = resume(run, attempt, record, {} if seat is None else seat.facts)
        if (made := warm_up(run)) is not None:
            record.event(start + 1 if start else 0, "compiled", **made)

        with Watch(run, record) as watch, Loader(run) as loader:

            def save(step: int) -> None:
                watch.flush()  # the detector's state is of this step
                write_checkpoint(run, attempt, record, step)

            compute = None if seat is None else seat.gradients
            step, reason = train(run, start, watch, loader, save, should_stop, compute)
        held = peak_memory.peak(device)
        if parallel.leads and step > start and held is not None:
            attempt.note(peak_memory=held)
        if reason is not None:
            return Result(status="preempted", step=step, reason=reason)
        found = measure_inference(run, attempt) if typed.cache.measures else {}
        if found and not typed.train.keep_final:
            drop_weights(run, attempt, step)
        summary = summarise(run, attempt) | found if parallel.leads else {}
        return Result(status="done", step=step, summary=summary)


def resume(run: Run, attempt: Attempt, record: Record, known: dict[str, Any]) -> int:
    """Restores the newest readable checkpoint of any earlier attempt; returns its step, or 0.

    `known` is told with the start.
    """
    unreadable: list[dict[str, Any]] = []

    def skip(number: int, step: int, reason: str) -> None:
        unreadable.append({"attempt": number, "at": step, "reason": reason})

    found = run.parallel.restore(run, attempt.trial, skip)
    # Events of an attempt count from the step after the one at which it resumed.
    first = 0 if found is None else found.step + 1
    for fields in unreadable:
        record.event(first, "checkpoint_unreadable", **fields)
    facts: dict[str, Any] = {
        "attempt": attempt.number,
        "device": device_name(run.device),
        "attention": run.attention,
        "compiled": run.compiled is not None,
        "compile_reason": run.compiling.reason,
        **known,
    }
    if run.device.type == "cpu":
        facts["instructions"] = instructions()
    if run.parallel.world_size > 1:
        facts["processes"] = run.parallel.world_size
    if run.config.batching.name != "concat":
        layout = run.data.layout(run.sequence_length)
        facts["truncated_documents"] = layout.truncated_documents
        facts["truncated_tokens"] = layout.truncated_tokens
    if found is None:
        record.event(0, "start", **facts)
        run.response.begin(run)
        return 0
    if run.parallel.leads:
        attempt.resumed_from(found.attempt, found.step)
        facts |= restacked(attempt, found.attempt, found.step, known)
        facts |= moved(attempt, found.attempt, found.step, facts)
    record.event(first, "resume", **facts, resumed=found.attempt)
    return found.step


def write_checkpoint(run: Run, attempt: Attempt, record: Record, step: int) -> None:
    c = run.config.train
    needed = c.keep_final or run.config.cache.measures  # which is done with the final weights
    weightless = step == c.steps and not needed

    def before_commit() -> None:
        # An event of a checkpoint that is never committed belongs to steps that will be done again.
        record.event(step, "checkpoint")
        record.sync()

    run.parallel.save(run, attempt, step, weightless=weightless, before_commit=before_commit)
    if run.parallel.leads:
        checkpoint.prune(attempt, 1 if weightless else c.keep_checkpoints)


def drop_weights(run: Run, attempt: Attempt, step: int) -> None:
    """Leaves of the last step the fact alone that it was done."""
    if not run.parallel.leads:
        return
    if step in attempt.checkpoint_steps():
        checkpoint.drop_weights(attempt, step)
    else:  # it is an earlier attempt's
        checkpoint.save(attempt, step, model=None, train={})
    checkpoint.prune(attempt, 1)


def summarise(run: Run, attempt: Attempt) -> dict[str, Any]:
    """From the stitched record, so that it does not matter where the trial was interrupted."""
    c = run.config.train
    rows = list(attempt.trial.stitched())
    recent = [r["train/loss"] for r in rows if r["step"] > before_last_tenth(c.steps)]
    tokens = c.steps * run.tokens_per_step
    seconds = sum(run.tokens_per_step / r["tokens_per_second"] for r in rows)
    peaks = [v for r in rows for k, v in r.items() if k.startswith("model/attention_logit_max/")]
    flops = flops_per_token(run.model_config, run.sequence_length)
    full = run.config.batching.name in ("concat", "packed")  # other rows end with their documents
    peak = peak_flops(run.device, run.config.precision.name) if full else None
    summary = {
        **{k: v for k, v in rows[-1].items() if k.startswith(("val/", "robust/"))},
        "train/loss": sum(recent) / len(recent),
        "steps": c.steps,
        "tokens": tokens,
        "seconds": seconds,
        "tokens_per_second": tokens / seconds,
        "parameters": sum(p.numel() for p in run.parameters),
        "flops": flops * tokens,
        "flops_per_token": flops,
        "mfu": None if peak is None else flops * tokens / seconds / peak / run.parallel.world_size,
        "data_fingerprint": run.data.fingerprint,
        "device": device_name(run.device),
        "attention": "+".join(run.attention),
        "compiled": run.compiled is not None,
        "torch": torch.__version__,
    }
    summary |= phases_of(rows, seconds) | filling(rows, run, seconds) | damage(rows, attempt)
    records = [a.record() for a, _, _ in attempt.trial.lineage()]
    widths = [int(r.get("stacked", 1)) for r in records]
    if max(widths) > 1:
        summary["stacked"] = max(widths)  # models in one batch, which rounds otherwise
        summary["mfu"] = None  # its seconds are those of all members, its FLOPs its own
    if any("restacked" in r for r in records):
        summary["restacked"] = widths  # a part in another batch: the bits are of none of them
    held = [a.record().get("peak_memory") for a in attempt.trial.attempts()]
    if known := [int(n) for n in held if n is not None]:
        summary["peak_memory"] = max(known)  # of the attempts that came to an end of their own
    if run.shifted is not None:
        summary["shifted_data_fingerprint"] = run.shifted.fingerprint
    if run.parallel.world_size > 1:
        summary["processes"] = run.parallel.world_size
    if peaks:
        summary["model/attention_logit_max"] = max(peaks)
    return summary


def phases_of(rows: list[dict[str, Any]], seconds: float) -> dict[str, float]:
    """Seconds of the whole trial by phase, and the share of the steps that waited for data."""
    known = [*PHASES, *(["wait"] if any("time/wait" in r for r in rows) else [])]
    totals = {k: sum(r.get(f"time/{k}", 0.0) for r in rows) for k in known}
    shown = {f"time/{k}": round(v, 6) for k, v in totals.items()}
    return {**shown, "data_share": totals["data"] / seconds}


def filling(rows: list[dict[str, Any]], run: Run, seconds: float) -> dict[str, Any]:
    """How full the batches were, and how fast the tokens of the data passed."""
    key, per_step = "batching/real_tokens_per_second", run.tokens_per_step
    if run.config.batching.name == "concat":
        return {}  # full, and tokens_per_second says it
    real = sum(r[key] * per_step / r["tokens_per_second"] for r in rows)
    layout = run.data.layout(run.sequence_length)
    return {
        "batching/padding": sum(r["batching/padding"] for r in rows) / len(rows),
        key: real / seconds,
        "batching/real_tokens": round(real),
        "batching/truncated": layout.truncated,
        "batching/truncated_documents": layout.truncated_documents,
    }


def damage(rows: list[dict[str, Any]], attempt: Attempt) -> dict[str, Any]:
    """Scores of the trial's spikes, and how often something was done about them."""
    events = list(attempt.trial.stitched(EVENTS))
    steps, losses = [r["step"] for r in rows], [r["train/loss"] for r in rows]
    norms = [r["train/grad_norm"] for r in rows]
    scores = score(steps, losses, recorded(events), norms)
    done = Counter(e["what"] for e in events if e["kind"] == "response")
    scores |= instability(losses)
    return {f"spikes/{k}": v for k, v in {**scores, **done}.items() if k != "rows"}


def instability(losses: list[float]) -> dict[str, float]:
    """Against the loss of the untrained model, which needs no baseline of earlier rows, and bounded
    where the loss itself is not.

    Returns:
        `above_start`: share of the later rows that lie above the first. `lost`: 1 where the median
        of the last tenth does, else 0.
    """
    later = losses[1:] or losses
    last = sorted(later[-max(1, len(later) // 10) :])
    return {
        "above_start": sum(loss > losses[0] for loss in later) / len(later),
        "lost": float(last[len(last) // 2] > losses[0]),
    }


def device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
