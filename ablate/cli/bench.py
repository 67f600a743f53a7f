"""`ablate bench ...`: how fast one arm trains here, or beside installed peers. Writes nothing."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from typing import Any

from ablate.cli.arguments import Parser
from ablate.errors import AblateError, ConfigError

__all__ = ["main"]

DESCRIPTION = """\
Trains one arm for a few steps on its own data and shows tokens per second, the time of a step by
phase, the share of the device's peak (MFU) and the peak memory. With --peers: the arm beside
installed implementations of the same model (ai2-olmo, transformers), on one batch, alternating
step by step, with ratios of medians and their 95 % intervals. Nothing is written."""

EXAMPLES = """\
  ablate bench model=olmo2 size=1m precision=bf16            one arm
  ablate bench model=olmo2 size=1m train.compile=true        ... compiled
  ablate bench size=tiny attention=math                      ... by another kernel
  ablate bench model=olmo2 size=1m --peers                   beside every peer that can be it
  ablate bench model=gpt2 size=4m --peer transformers --compile-peers train.compile=true
  ablate bench size=tiny --rounds 50 --json                  for scripts
"""


def main(argv: Sequence[str]) -> int:
    """0 measured; what cannot be measured is refused (2)."""
    options = _parser().read(argv)
    config = _config(options)
    from ablate.launch.preflight import check_data, check_training

    check_data(config, progress=True)
    check_training(config)
    found = _beside(config, options) if options.peers or options.peer else _alone(config, options)
    if options.json:
        print(json.dumps(found, indent=2))
        return 0
    print(_table(found) if "contenders" in found else _story(found))
    return 0


def _config(options: argparse.Namespace) -> dict[str, Any]:
    from ablate.plan import single_trial

    if options.rounds < 2:
        raise AblateError(f"--rounds {options.rounds}: a median needs two rounds at least.")
    if options.clock == "cpu" and not (options.peers or options.peer):
        raise AblateError("--clock cpu belongs to --peers: phases are measured in wall time.")
    if options.compile_peers and not (options.peers or options.peer):
        raise AblateError("--compile-peers compiles peers: add --peers, or leave it out.")
    config = single_trial(options.overrides).trial.config
    if config["parallel"]["name"] != "none":
        name = config["parallel"]["name"]
        reason = "is measured in one process"
        raise ConfigError("parallel.name", name, reason, "Set parallel=none")
    return config


def _alone(config: Mapping[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    from ablate.cli.progress import Counted
    from ablate.train.bench import Timing, bench_arm

    timing = Timing(rounds=options.rounds, clock=options.clock)
    with Counted("steps", timing.warm + timing.rounds) as bar:
        return bench_arm(config, timing, _quietly(bar))


def _beside(config: Mapping[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    from ablate.cli.progress import Counted
    from ablate.train.bench import Timing, bench_peers, peers_of

    if options.clock == "cpu" and config["train"]["device"].startswith("cuda"):
        raise AblateError("--clock cpu does not see a GPU's time: use --clock wall.")
    absent = peers_of(config, options.peer or ())
    names = [name for name, why in absent.items() if why is None]
    timing = Timing(rounds=options.rounds, clock=options.clock)
    total = (1 + len(names)) * (timing.warm + timing.rounds)
    with Counted("steps", total) as bar:
        found = bench_peers(
            config, timing, names, compiled=options.compile_peers, tell=_quietly(bar)
        )
    return {**found, "absent": {name: why for name, why in absent.items() if why}}


def _quietly(bar: Any) -> Any:
    """A bar on a terminal; elsewhere no line for each of hundreds of steps."""
    import sys

    return bar.advance if sys.stderr.isatty() else lambda said: None


def _story(found: Mapping[str, Any]) -> str:
    phases = found["phases_ms"]
    total = sum(phases.values())
    lines = [
        f"{found['tokens_per_second']:,.0f} tokens/s (spread {found['spread']:.1%}), "
        f"{found['step_ms']:,.1f} ms a step of {found['tokens_per_step']:,} tokens",
        *(f"  {name:<10} {ms:10,.1f} ms  {ms / total:6.1%}" for name, ms in phases.items()),
        f"  {'MFU':<10} {found['mfu']:10.1%}     of {found['peak_flops'] / 1e9:,.0f} GFLOP/s "
        f"({found['peak_flops_source']})",
    ]
    if found["peak_memory"] is not None:
        lines.append(f"  {'memory':<10} {found['peak_memory'] / 2**20:10,.0f} MiB at the peak")
    return "\n".join([*lines, *_foot(found)])


def _table(found: Mapping[str, Any]) -> str:
    lines = [f"{'':<14}{'ms a step':>10}{'tokens/s':>12}{'spread':>9}   theirs / ours"]
    for row in found["contenders"]:
        line = f"{row['name']:<14}{row['step_ms']:>10,.1f}{row['tokens_per_second']:>12,.0f}"
        line += f"{row['spread']:>9.1%}"
        if "ratio" in row:
            line += f"   {row['ratio']:.3f} [{row['low']:.3f}, {row['high']:.3f}]"
        lines.append(line)
    lines += [f"{name}: not timed, it {why}" for name, why in found["absent"].items()]
    if found["peers_compiled"]:
        lines.append("Peers are compiled as a whole by torch.compile.")
    return "\n".join([*lines, *_foot(found)])


def _foot(found: Mapping[str, Any]) -> list[str]:
    kernels = ", ".join(f"{name} ({why})" for name, why in found["attention"].items())
    made = found["compiling"]
    took = f", in {made['seconds']:.1f} s" if made else ""
    threads = "thread" if found["threads"] == 1 else "threads"
    return [
        f"Attention: {kernels}. Ours is {'compiled' if found['compiled'] else 'eager'}{took}.",
        f"{found['device']}, {found['threads']} {threads}, {found['precision']}, torch "
        f"{found['torch']}; {found['rounds']} rounds, {found['clock']} time, load {found['load']}.",
    ]


def _parser() -> Parser:
    parser = Parser("bench", description=DESCRIPTION, examples=EXAMPLES)
    parser.add_argument(
        "overrides", nargs="*", metavar="KEY=VALUE", help="Hydra overrides: groups and values"
    )
    parser.add_argument("--peers", action="store_true", help="beside every installed peer")
    parser.add_argument(
        "--peer", action="append", metavar="NAME", help="beside this one: ai2-olmo, transformers"
    )
    parser.add_argument(
        "--compile-peers", action="store_true", help="peers by torch.compile, as a whole"
    )
    parser.add_argument("--rounds", type=int, default=20, help="measured steps of each (20)")
    parser.add_argument(
        "--clock", choices=("wall", "cpu"), default="wall",
        help="cpu: of this process, where others use the machine too (with --peers)",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    return parser
