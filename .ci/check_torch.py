"""Before `make install`: which build of torch would pip fetch? No GPU, no CUDA build of several GB.

python .ci/check_torch.py requirements.lock
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

REFUSAL = """\
make: pip would fetch the CUDA build of {pin} (several GB), and this machine has no NVIDIA GPU.
Point pip at PyTorch's CPU wheels, by the index that https://pytorch.org/get-started/locally names
for Linux, pip and CPU:  PIP_EXTRA_INDEX_URL=<that index> make {goal}
To take the CUDA build all the same:  make {goal} TORCH=cuda
"""


def needs_cuda(pin: str) -> bool:
    """Whether the wheel that pip would choose depends on NVIDIA's libraries; False if unknown."""
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed"]
    command += ["--no-deps", "--quiet", "--disable-pip-version-check", "--report", "-", pin]
    done = subprocess.run(command, capture_output=True, text=True)
    try:
        wheel = json.loads(done.stdout)["install"][0]["metadata"]
    except (ValueError, LookupError):
        return False
    return any(re.match(r"nvidia-|cuda-", need) for need in wheel.get("requires_dist", []))


def main(lock: str) -> int:
    if os.environ.get("TORCH") == "cuda" or shutil.which("nvidia-smi"):
        return 0
    if importlib.util.find_spec("torch"):
        return 0
    pin = next(line for line in Path(lock).read_text().splitlines() if line.startswith("torch=="))
    if needs_cuda(pin):
        sys.stderr.write(REFUSAL.format(pin=pin, goal=os.environ.get("GOAL") or "install"))
        return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1]))
