"""Short trials of every option that is found in conf/, and what they are compared with."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import Any

import torch

from ablate.config.compose import Composer
from ablate.config.schema import TrialConfig
from ablate.model import OLMo
from ablate.model.config import ModelConfig
from ablate.plan import resolve
from ablate.rundir import TrialDir
from ablate.train import run_trial
from ablate.train.batch import TensorBatch, to_tensors
from ablate.train.checkpoint import Checkpoint, read
from ablate.train.run import Run, assemble
from tests.contract.test_training_options import BITING

__all__ = ["CASES", "EVERY", "LENGTH", "OF_CUDA", "RANDOM", "ROWS", "STREAM", "Trained", "trained"]

CPU = torch.device("cpu")
COMPOSER = Composer()
SHAPING = {
    "model", "batching", "loss", "optim", "schedule", "precision", "clip", "spikes", "cache",
}  # fmt: skip
"""Sections whose options change what a trial of one process on given data computes."""
PRESETS = {"size", "data"}
GROUPS = [
    g
    for g in COMPOSER.groups()
    if g not in {"sweep", *PRESETS}
    and all(
        k.split(".")[0] in SHAPING
        for o in COMPOSER.choices(g)
        for k in COMPOSER.touched(f"{g}={o}")
    )
]
OPTIONS = [(g, o) for g in GROUPS for o in COMPOSER.choices(g)]
STEPS, EVERY, LENGTH, ROWS = 4, 2, 16, 4
HELD_OUT, STREAM = 150, 64
TINY = [
    "size=tiny", "model.d_model=16", "model.n_heads=2", f"model.max_sequence_length={LENGTH}",
    "model.vocab_size=257", "model.embedding_size=null", f"train.batch_size={ROWS}",
    f"train.steps={STEPS}", "train.checkpoint_every=1", "train.keep_checkpoints=-1",
    f"train.validate_every={EVERY}", f"train.measure_every={EVERY}",
    f"train.validation_tokens={HELD_OUT}", "train.device=cpu", "schedule.warmup=1",
    "optim.lr=1e-2", f"cache.tokens={STREAM}", "cache.budget=24", "cache.recent=8",
    "cache.prompts=4", "cache.prompt_tokens=8",
]  # fmt: skip
MORE = {
    "documents": ["data.document_masking=true"],
    "documents, relative, windows": [
        "data.document_masking=true", "position=relative", "window=pattern",
    ],
    "relative, windows": ["position=relative", "model.sliding_window=5"],
    "micro-batches": ["train.micro_batch_size=2"],
    "recomputed": ["train.activation_checkpointing=whole_layer", "position=relative"],
    "noise in the text": ["evaluate.token_noise=0.2", "position=relative"],
    "repetitions": ["train.filter_repetitions=true"],
    "half precision, cache": ["precision=fp16", "cache=full"],
    "half precision spelled out, cache": ["precision=fp16_naive", "cache=full"],
    "half precision protected, cache": ["precision=fp16_protected", "cache=full"],
    "bf16, cache": ["precision=bf16", "cache=full"],
    "pure bf16, cache": ["precision=pure_bf16", "cache=full"],
    "half precision, preheated": ["precision=fp16", "cache=preheated"],
}  # fmt: skip
"""Besides single options: what no group has, and pairs."""
ASKED = {
    **BITING,
    "schedule=composable": ["train.steps=20"],  # of whose stages one is a twentieth
    "schedule=wsds": [f"schedule.periods=[2,{STEPS}]"],
}
OF_CUDA = ("attention=flash", "attention=varlen", "attention=flex")
"""Kernels that do not train on a CPU, on which these trials run; `make test-gpu` compares them."""
CASES = {f"{g}={o}": [*ASKED.get(g, []), *ASKED.get(f"{g}={o}", []), f"{g}={o}"]
         for g, o in OPTIONS} | MORE  # fmt: skip
DROPPED = ("attention", "embedding", "residual")
RANDOM = ("dropout=standard", "norm=noisy")
"""Options under which a training pass draws numbers."""
CLOSE = {"fp32": 2e-6, "bf16": 2e-2, "fp16": 1e-2, "fp16_protected": 1e-2, "pure_bf16": 5e-2}
"""Relative distance that rounding may make, by precision."""


def configured(folder: Path, case: str) -> dict[str, Any]:
    """On OLMo 2 where GPT-2 is that option already."""
    data = [f"data.path={folder}/text", f"data.cache_dir={folder}/cache",
            "data.validation_fraction=0.2"]  # fmt: skip

    still = [] if "dropout=" in case else [f"model.{k}_dropout=0" for k in DROPPED]

    def resolved(*overrides: str) -> dict[str, Any]:
        return resolve(COMPOSER.compose([*TINY, *data, *still, *overrides]))

    if "cache" in case:  # of positions beyond those that are trained
        return resolved("model=olmo2", *CASES[case])
    plain, config = resolved("model=gpt2"), resolved("model=gpt2", *CASES[case])
    return resolved("model=olmo2", *CASES[case]) if plain == config else config


@dataclasses.dataclass
class Trained:
    """A trial that is done, and what it is compared with."""

    config: dict[str, Any]
    trial: TrialDir
    summary: dict[str, Any]
    rows: list[dict[str, Any]]

    @property
    def steps(self) -> int:
        return self.config["train"]["steps"]

    @functools.cached_property
    def typed(self) -> TrialConfig:
        return TrialConfig.from_mapping(self.config)

    @property
    def close(self) -> float:
        return CLOSE[self.config["precision"]["name"]]

    @functools.cached_property
    def looked_at(self) -> list[int]:
        """Steps with a validation and measurements: not all of a long trial."""
        return sorted({EVERY, 2 * EVERY, self.steps})

    @functools.cached_property
    def checkpoints(self) -> dict[int, Checkpoint]:
        return {}

    def saved(self, step: int) -> Checkpoint:
        if step not in self.checkpoints:
            attempt = self.trial.newest_attempt()
            assert attempt is not None
            self.checkpoints[step] = read(attempt.checkpoint_path(step), 1, step, CPU)
        return self.checkpoints[step]

    @functools.cached_property
    def untrained(self) -> Run:
        return assemble(self.typed, CPU)

    def batch(self, step: int) -> TensorBatch:
        return to_tensors(self.untrained.make_batch(step), CPU)

    def restored(self, step: int) -> Run:
        """As in a process that goes on from there."""
        run = assemble(self.typed, CPU)
        run.restore(self.saved(step))
        return run

    def model(self, step: int) -> Any:
        """Another object, float64, attention by matrix products."""
        fields = dataclasses.asdict(ModelConfig.from_mapping(self.config["model"]))
        if fields["block_type"] != "llama":
            fields |= {"attention_backend": "math", "flash_attention": False}
        model = OLMo(ModelConfig.from_mapping(fields), init_params=False)
        weights = self.saved(step).model
        assert weights is not None
        model.load_state_dict(weights)
        return model.double().eval()

    @functools.cached_property
    def held_out(self) -> list[int]:
        return self.untrained.data.held_out.read(0, HELD_OUT).tolist()


@functools.cache
def trained(folder: Path, case: str) -> Trained:
    """Once for all tests."""
    trial, config = TrialDir(folder / case.replace("=", "-")), configured(folder, case)
    trial.create(config, config["train"]["steps"])
    result = run_trial(trial.acquire(), config)
    assert result.status == "done"
    return Trained(config, trial, result.summary, list(trial.stitched()))
