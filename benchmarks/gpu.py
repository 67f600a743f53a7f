"""Everything that needs a GPU, by one command: the tests marked `gpu`, and a table of figures.

    python -m benchmarks.gpu                    # `make test-gpu`: writes runs/gpu.md
    python -m benchmarks.gpu --only stacked     # a part of it (also: kernels, compile, ...)

Without a GPU it says so, writes nothing and exits with 2. `--rehearse` runs the same code on the
CPU with tiny models, to see that it works, and writes what it finds elsewhere, marked as such.
Exit code 1: a test failed, or a part could not be measured.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu_parts import PARTS, Scale

OUT, REHEARSED = Path("runs/gpu.md"), Path("runs/gpu-rehearsal.md")
NO_GPU = (
    "This machine has no GPU that torch can use ({why}), so nothing was tested or measured and no "
    "table was written. Run `make test-gpu` on one that has; `python -m benchmarks.gpu --rehearse` "
    "runs the same code here, on the CPU, with tiny models."
)
WARNING = (
    "**A rehearsal on a CPU with tiny models: no figure in this file is one of a GPU.** It shows "
    "that the code runs."
)

Rows = list[dict[str, Any]]


def table(rows: Rows) -> str:
    """Markdown; a column for each key, in the order in which keys come."""
    keys = list(dict.fromkeys(key for row in rows for key in row))
    lines = ["| " + " | ".join(keys) + " |", "|" + "---|" * len(keys)]
    lines += ["| " + " | ".join(shown(row.get(key)) for key in keys) + " |" for row in rows]
    return "\n".join(lines)


def shown(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def page(scale: Scale, found: dict[str, Rows], tests: str | None) -> str:
    """The whole file: what it was measured on comes first."""
    parts = ["# Measured on a GPU" if scale.is_gpu else "# A rehearsal", ""]
    parts += [] if scale.is_gpu else [WARNING, ""]
    made = time.strftime("%Y-%m-%d")
    parts += [f"{scale.device_name}, torch {torch.__version__}, {made}.", ""]
    parts += [f"Tests marked `gpu`: {tests}.", ""] if tests else []
    for name, rows in found.items():
        parts += [f"## {PARTS[name].title}", "", PARTS[name].about, "", table(rows), ""]
    return "\n".join(parts)


def measure(scale: Scale, names: Sequence[str]) -> tuple[dict[str, Rows], bool]:
    """Rows of each part, and whether all could be measured; one that cannot says why in its row."""
    found, sound = {}, True
    for name in names:
        print(f"measuring: {PARTS[name].title}", file=sys.stderr)
        try:
            found[name] = PARTS[name].measure(scale)
        except Exception as error:
            traceback.print_exc()
            found[name] = [{"failed": f"{type(error).__name__}: {error}".splitlines()[0]}]
        sound = sound and not any("failed" in row for row in found[name])
    return found, sound


def run_tests() -> tuple[str, bool]:
    """What pytest says in its last line, and whether all passed."""
    command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    sys.stderr.write(done.stdout)
    lines = done.stdout.strip().splitlines()
    return (lines[-1].strip("= ") if lines else "none ran"), done.returncode == 0


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--only", choices=list(PARTS), action="append")
    parser.add_argument("--rehearse", action="store_true", help="on the CPU, with tiny models")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args(argv)
    if not args.rehearse and not torch.cuda.is_available():
        why = "torch was built without CUDA" if torch.version.cuda is None else "CUDA finds none"
        print(NO_GPU.format(why=why), file=sys.stderr)
        return 2
    scale = Scale.rehearsal() if args.rehearse else Scale.full()
    tests, passed = (None, True) if args.rehearse or args.only else run_tests()
    found, sound = measure(scale, args.only or list(PARTS))
    out = args.out or (OUT if scale.is_gpu else REHEARSED)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(page(scale, found, tests), encoding="utf-8")
    print(f"Written: {out}", file=sys.stderr)
    return 0 if passed and sound else 1


if __name__ == "__main__":
    raise SystemExit(main())
