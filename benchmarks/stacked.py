"""Training steps of trials that are stacked, against the same trials one after the other.

    python -m benchmarks.stacked           # eight seeds, d = 32, 64, 128, on the CPU
    python -m benchmarks.stacked --device cuda --width 256 --width 512

One process, one thread, alternating (on a CPU in CPU seconds); a step is batch, forward, backward,
clipping and AdamW of every member. The ratio is (one after the other) / (stacked), so above 1
stacking wins; the interval is a 95 % bootstrap over rounds of the ratio of medians.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from ablate.config.compose import Composer
from ablate.config.schema import TrialConfig
from ablate.plan import resolve
from ablate.train.batch import to_tensors
from ablate.train.clip import gradient_norms
from ablate.train.clock import alternate, ratio
from ablate.train.device import wait
from ablate.train.loop import accumulate_gradients
from ablate.train.run import Run, assemble
from ablate.train.stacked import Seat, Stack


def configs(width: int, members: int, device: str, words: Sequence[str]) -> list[TrialConfig]:
    """Of an OLMo 2-style model of four layers, 8 sequences of 64 bytes a step."""
    asked = ["model=olmo2", "size=tiny", f"model.d_model={width}", "model.n_layers=4"]
    asked += ["model.n_heads=4", "train.batch_size=8", "train.sequence_length=64", "data=kjv"]
    asked += [f"train.device={device}", "train.steps=100000", *words]
    resolved = resolve(Composer().compose(asked))
    return [TrialConfig.from_mapping({**resolved, "seed": seed}) for seed in range(members)]


def update(run: Run, step: int) -> None:
    gradients = run.gradients()
    run.clip(step, gradients, gradient_norms(gradients))
    run.optimiser.step()
    run.discard_gradients()


def one_after_another(runs: list[Run], step: int) -> None:
    for run in runs:
        accumulate_gradients(run, to_tensors(run.next_batch(step), run.device))
        update(run, step)


def stacked(seats: list[Seat], step: int) -> None:
    for seat in seats:
        seat.batch = to_tensors(seat.run.next_batch(step), seat.run.device)
    seats[0].stack.compute(seats)
    for seat in seats:
        update(seat.run, step)


def measure(
    width: int, members: int, rounds: int, device: str = "cpu", words: Sequence[str] = ()
) -> dict[str, Any]:
    place = torch.device(device)
    given = configs(width, members, device, words)
    plain, batched = ([assemble(c, place) for c in given] for _ in range(2))
    stack = Stack([str(i) for i in range(members)])
    seats = [stack.seat(str(i)) for i in range(members)]
    for seat, run in zip(seats, batched, strict=True):
        seat.take(run)
    at = {way: itertools.count(1) for way in ("plain", "stacked")}

    def plainly() -> None:
        one_after_another(plain, next(at["plain"]))
        wait(place)

    def together() -> None:
        stacked(seats, next(at["stacked"]))
        wait(place)

    ways: dict[str, Callable[[], object]] = {"plain": plainly, "stacked": together}
    # On a CPU in its own seconds, since others may share the machine.
    took = alternate(ways, rounds, warm=2, clock="cpu" if device == "cpu" else "wall")
    gain = ratio(took["plain"], took["stacked"])
    tokens = members * given[0].train.batch_size * 64
    return {
        "device": device if device == "cpu" else torch.cuda.get_device_name(place),
        "width": width,
        "members": members,
        "parameters": sum(p.numel() for p in plain[0].parameters),
        "plain_tokens_per_second": tokens / float(np.median(took["plain"])),
        "stacked_tokens_per_second": tokens / float(np.median(took["stacked"])),
        "ratio": gain.middle,
        "low": gain.low,
        "high": gain.high,
        "rounds": rounds,
    }


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--width", type=int, action="append")
    parser.add_argument("--members", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    for width in args.width or (32, 64, 128):
        row = measure(width, args.members, args.rounds, args.device)
        if args.json:
            print(json.dumps(row))
            continue
        print(
            f"d={width:4} {row['parameters']:>10,} parameters  one after another "
            f"{row['plain_tokens_per_second']:>10,.0f} tokens/s  stacked "
            f"{row['stacked_tokens_per_second']:>10,.0f}  ratio {row['ratio']:.2f} "
            f"[{row['low']:.2f}, {row['high']:.2f}]"
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
