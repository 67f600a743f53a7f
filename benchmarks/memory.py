"""The plan's memory against the peak of whole trials, as torch's profiler counts allocations.

python -m benchmarks.memory                # a minute or two; a CPU
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch.profiler import ProfilerActivity, profile

from ablate.config.compose import Composer
from ablate.plan import memory_of, resolve
from ablate.rundir import TrialDir
from ablate.train import run_trial

BASE = ["size=1m", "data=kjv", "train.steps=3", "train.device=cpu", "train.batch_size=8",
        "train.validation_tokens=1000", "train.checkpoint_every=0"]  # fmt: skip
VOCABULARY = ("data.tokenizer=bpe data.tokenizer_vocab_size=8192 model.vocab_size=8192 "
              "model.eos_token_id=0 model.pad_token_id=0")  # fmt: skip
CASES = (
    "model=gpt2",
    "model=olmo2",
    "model=olmo2 train.micro_batch_size=4",
    "model=olmo2 train.activation_checkpointing=whole_layer",
    "model=gpt2 dropout=none train.activation_checkpointing=whole_layer",
    "model=olmo2 train.activation_checkpointing=whole_layer precision=bf16",
    "model=olmo2 train.activation_checkpointing=one_in_two precision=bf16",
    "model=olmo2 train.activation_checkpointing=fine_grained precision=bf16",
    "model=olmo2 optim=lion",
    "model=olmo2 optim=muon",
    "model=olmo2 precision=bf16",
    "model=olmo2 loss.z_loss=1e-5",
    f"model=olmo2 {VOCABULARY}",
    f"model=olmo2 {VOCABULARY} loss.chunk=256",
    f"model=olmo2 {VOCABULARY} precision=bf16",
)


def main() -> None:
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    print(f"{'':<100} {'measured':>9} {'formula':>9} {'ratio':>6}")
    for case in CASES:
        config = resolve(Composer().compose([*BASE, *case.split()]))
        real, formula = measured(config), memory_of(config, device="cpu").peak
        print(
            f"{case:<100} {real / 2**20:5.1f} MiB {formula / 2**20:5.1f} MiB {formula / real:6.3f}"
        )


def measured(config: dict[str, Any]) -> int:
    """The most bytes of tensors at one time in a trial of this configuration."""
    with tempfile.TemporaryDirectory() as folder:
        trial = TrialDir(Path(folder) / "study" / "trials" / "trial")
        trial.create(config, config["train"]["steps"])
        return peak_of(lambda: run_trial(trial.acquire(), config))


def peak_of(function: Callable[[], object]) -> int:
    """The most bytes of tensors that it holds at one time, beside those that were there."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        function()
    assert profiler.profiler is not None
    events: Any = profiler.profiler.kineto_results
    changes = [(e.start_ns(), e.nbytes()) for e in events.events() if e.name() == "[memory]"]
    return max(itertools.accumulate(change for _, change in sorted(changes)))


if __name__ == "__main__":
    main()
