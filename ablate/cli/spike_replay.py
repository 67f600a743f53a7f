"""`ablate spikes replay TRIAL --step T`: what was in the batch, and what it did to each layer."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

from ablate.cli.arguments import reading_parser, take_runs_dir
from ablate.cli.spike_records import find_trial
from ablate.errors import AblateError
from ablate.spikes.events import plain

__all__ = ["main"]

EXAMPLES = """\
  ablate spikes replay hello/qk_norm-s0 --step 120
  ablate spikes replay runs/hello/trials/ID --step 120 --before 1 --after 8 --json
"""
LAYERED = ("activation_rms", "attention_logit_max")


def main(argv: Sequence[str]) -> int:
    description = f"{__doc__ or ''} Trains again from the trial's newest checkpoint before step T "
    description += "(keep more of them with train.keep_checkpoints=-1), and writes nothing."
    parser = reading_parser("spikes replay", description=description, examples=EXAMPLES)
    parser.add_argument(
        "words", nargs="*", metavar="TRIAL", help="its folder, STUDY/TRIAL or its id"
    )
    parser.add_argument("--step", type=int, required=True, help="the step of the spike")
    parser.add_argument("--before", type=int, default=3, help="steps shown before it")
    parser.add_argument("--after", type=int, default=3, help="steps shown after it")
    parser.add_argument("--rows", type=int, default=3, help="sequences shown of its batch")
    options = parser.read(argv)
    words = take_runs_dir(options, options.words)
    if len(words) != 1:
        raise AblateError("name one trial: `ablate spikes replay TRIAL --step T`.")
    if options.step < 1 or options.before < 0 or options.after < 0:
        raise AblateError("--step counts from 1, --before and --after from 0.")
    trial = find_trial(words[0], options.runs_dir)
    if trial is None:
        raise AblateError(
            f"There is no trial {words[0]}: give its folder, STUDY/TRIAL, or its id and --runs-dir."
        )
    from ablate.train.replay import replay

    def said(step: int) -> None:
        if step % 100 == 0:
            print(f"step {step}", file=sys.stderr)

    found = replay(trial, options.step, before=options.before, after=options.after, on_step=said)
    if options.json:
        print(json.dumps(plain(found), indent=2))
    else:
        _show(found, options.step, options.rows)
    return 0


def _show(found: dict[str, Any], step: int, rows: int) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False, soft_wrap=True)
    origin = f"checkpoint of step {found['checkpoint']}" if found["checkpoint"] else "the beginning"
    same = "the recorded losses, bit for bit" if found["same"] else "NOT the recorded losses"
    console.print(Text(f"{found['trial']}: replayed from {origin}: {same}", style="bold"))
    steps = found["steps"]
    console.print(_line("step", [s["step"] for s in steps]))
    for title, key in (("loss", "train/loss"), ("gradient norm", "train/grad_norm"),
                       ("update norm", "train/update_norm")):  # fmt: skip
        console.print(_line(title, [s[key] for s in steps]))
    for part in steps[0]["gradient_norm"]:
        name = f"layer {part}" if part.isdigit() else part
        values = [s["gradient_norm"].get(part, float("nan")) for s in steps]
        console.print(_line(f"gradient, {name}", values))
    for key in LAYERED:
        for full in [k for k in steps[0]["model"] if k.startswith(f"{key}/")]:
            name = f"{key.replace('_', ' ')}, {full.partition('/')[2]}"
            console.print(_line(name, [s["model"][full] for s in steps]))
    at = next(s for s in steps if s["step"] == step)
    console.print(Text(f"\nbatch {at['batch']}, the worst sequences first:"))
    for row in at["rows"][:rows]:
        console.print(Text(f"  sequence {row['sequence']}, loss {row['loss']:.3f}: {row['text']}"))


def _line(title: str, values: Sequence[float]) -> str:
    cells = (f"{v:>10}" if isinstance(v, int) else f"{v:>10.4g}" for v in values)
    return f"{title:<32}" + "".join(cells)
