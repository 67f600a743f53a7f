"""A trial does not import torch's compiler, and whoever wants it still gets it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]

TRIAL = """\
import json, sys
from pathlib import Path
from ablate.config.schema import TrialConfig
from ablate.plan import resolve
from ablate.rundir import TrialDir
from ablate.train import run_trial
for number, asked in enumerate(json.loads(sys.argv[2])):
    trial, config = TrialDir(Path(sys.argv[1]) / str(number)), resolve(asked)
    trial.create(config, config["train"]["steps"])
    run_trial(trial.acquire(), config)
print(*sorted(m for m in sys.modules if m.startswith(("torch._dynamo.", "torch.distributed.fsdp"))))
"""

COMPILED = """\
import sys, torch
from torch import nn
from ablate.train.lean import postpone_dynamo
postpone_dynamo()
model = nn.Linear(2, 2)
optimiser = torch.optim.AdamW(model.parameters())
model(torch.ones(1, 2)).sum().backward()
optimiser.step()
assert "torch._dynamo.config" not in sys.modules
double = torch.compile(lambda x: 2 * x, backend="eager")
assert double(torch.ones(1)).item() == 2
import torch._dynamo.config
from torch._dynamo import explain
assert torch._dynamo is sys.modules["torch._dynamo"] and callable(explain)
assert torch._dynamo.config.cache_size_limit
"""


def python(code: str, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code, *words],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_trial_imports_neither_the_compiler_nor_fsdp(
    config: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    """Whatever its optimiser: three trials in one process, after which neither is there."""
    train = {"steps": 3, "checkpoint_every": 2}
    asked = [config(optim={"name": name}, train=train) for name in ("adamw", "lion", "muon")]
    assert python(TRIAL, str(tmp_path / "s" / "trials"), json.dumps(asked)) == ""
    assert len(list((tmp_path / "s" / "trials").iterdir())) == 3


def test_what_was_postponed_is_imported_when_something_is_compiled() -> None:
    python(COMPILED)
