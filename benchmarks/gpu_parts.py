"""The parts of the table of a GPU. Each has a reference that a CPU computes, or two ways that are
compared; all run on a CPU too, with tiny models.
"""

from __future__ import annotations

import itertools
import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ablate.config.compose import Composer
from ablate.errors import AblateError
from ablate.model import ModelConfig, OLMo
from ablate.plan import resolve
from ablate.rundir import TrialDir
from ablate.train import run_trial
from ablate.train.peak_flops import peak_flops
from benchmarks import stacked

Rows = list[dict[str, Any]]

KERNELS = ("sdpa", "math", "flash", "varlen", "flex")
MASKS: dict[str, dict[str, Any]] = {
    "causal": {},
    "window": {"sliding_window": 16},
    "alibi": {"alibi": True, "rope": False},
    "qk-norm, grouped": {"attention_layer_norm": True, "n_kv_heads": 2},
    "documents": {},
}


@dataclass(frozen=True, kw_only=True)
class Scale:
    """How large a machine is asked, and how long."""

    device: torch.device
    presets: dict[str, list[str]]
    """Name -> overrides of the throughput part."""
    width: int
    layers: int
    length: int
    steps: int
    stacks: tuple[int, ...]
    """Widths of stacked models."""
    members: int
    packed: tuple[int, ...]
    """Trials at once on the device."""

    @property
    def is_gpu(self) -> bool:
        return self.device.type == "cuda"

    @property
    def device_name(self) -> str:
        return torch.cuda.get_device_name(self.device) if self.is_gpu else "CPU"

    @classmethod
    def full(cls) -> Scale:
        sizes = {"20m": 64, "60m": 64, "150m": 32, "300m": 32, "700m": 16, "1b": 16}
        presets = {
            size: [f"size={size}", f"train.batch_size={rows}", "train.sequence_length=1024"]
            for size, rows in sizes.items()
        }
        return cls(
            device=torch.device("cuda"), presets=presets, width=256, layers=4, length=512,
            steps=40, stacks=(64, 128, 256, 512), members=8, packed=(1, 2, 4, 8),
        )  # fmt: skip

    @classmethod
    def rehearsal(cls) -> Scale:
        tiny = ["size=tiny", "model.d_model=32", "train.batch_size=2", "train.sequence_length=32"]
        return cls(
            device=torch.device("cpu"), presets={"tiny": tiny}, width=32, layers=2, length=32,
            steps=4, stacks=(32,), members=2, packed=(1, 2),
        )  # fmt: skip


# ---- numerics of each attention kernel


def model_fields(scale: Scale, **changes: Any) -> dict[str, Any]:
    fields = {
        "d_model": scale.width, "n_heads": 4, "n_layers": scale.layers, "vocab_size": 256,
        "embedding_size": 256, "max_sequence_length": scale.length, "eos_token_id": 0,
        "pad_token_id": 0, "attention_dropout": 0.0, "residual_dropout": 0.0,
        "embedding_dropout": 0.0, "rope": True, "include_bias": False, "layer_norm_type": "rms",
    }  # fmt: skip
    return {**fields, **changes}


def outputs(
    model: OLMo, ids: torch.Tensor, documents: bool, precision: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits, and the gradient of their mean square by the embedding; float64 on the CPU."""
    inputs: dict[str, Any] = {"input_ids": ids}
    if documents:
        half = ids.shape[1] // 2
        lengths = torch.tensor([[half, ids.shape[1] - half]] * len(ids), device=ids.device)
        inputs |= {"doc_lens": lengths.int(), "max_doc_lens": [ids.shape[1] - half] * len(ids)}
    model.zero_grad()
    low = precision in (torch.bfloat16, torch.float16)
    with torch.autocast(ids.device.type, precision if low else torch.bfloat16, enabled=low):
        logits = model(**inputs).logits
    logits.float().square().mean().backward()
    gradient = model.transformer["wte"].weight.grad
    return logits.detach().double().cpu(), gradient.detach().double().cpu()  # type: ignore


def kernels(scale: Scale) -> Rows:
    """Largest difference from float64 on the CPU, over the largest value."""
    rows = []
    for mask, changes in MASKS.items():
        fields, documents = model_fields(scale, **changes), mask == "documents"
        exact = OLMo(ModelConfig(**fields, attention_backend="math"), seed=1).double()
        ids = torch.randint(1, 256, (2, scale.length), generator=torch.Generator().manual_seed(0))
        expected = outputs(exact, ids, documents, torch.float64)
        for kernel in KERNELS:
            for precision in (torch.float32, torch.bfloat16):
                row: dict[str, Any] = {"kernel": kernel, "mask": mask}
                row["precision"] = str(precision).removeprefix("torch.")
                try:
                    config = ModelConfig(**fields, attention_backend=kernel)
                    model = OLMo(config, seed=1).to(scale.device)
                    found = outputs(model, ids.to(scale.device), documents, precision)
                    for name, a, b in zip(("logits", "gradient"), found, expected, strict=True):
                        row[name] = float((a - b).abs().max() / b.abs().max())
                except (AblateError, ImportError, NotImplementedError) as error:
                    row["refused"] = str(error).splitlines()[0][:80]
                except Exception as error:
                    row["failed"] = f"{type(error).__name__}: {error}".splitlines()[0][:80]
                rows.append(row)
    return rows


# ---- trials


def trial(scale: Scale, words: list[str], folder: Path) -> dict[str, Any]:
    """The summary of a short trial, and the speed of its second half."""
    asked = ["model=olmo2", "data=kjv", *words, f"train.steps={scale.steps}"]
    asked += [f"train.device={scale.device.type}", "train.validation_tokens=4096"]
    asked += ["train.checkpoint_every=0", "train.keep_final=false"]
    config = resolve(Composer().compose(asked))
    place = TrialDir(folder / f"{len(list(folder.iterdir()))}")
    place.create(config, scale.steps)
    summary = run_trial(place.acquire(), config).summary
    rows = list(place.stitched())[scale.steps // 2 :]
    pairs = itertools.pairwise(rows)
    seconds = sum((b["tokens"] - a["tokens"]) / b["tokens_per_second"] for a, b in pairs)
    speed = (rows[-1]["tokens"] - rows[0]["tokens"]) / seconds
    peak = peak_flops(scale.device, config["precision"]["name"])
    mfu = None if peak is None else speed * summary["flops_per_token"] / peak
    return {**summary, "speed": speed, "percent": None if mfu is None else 100 * mfu}


def compiled(scale: Scale) -> Rows:
    """The same trial with and without torch.compile, and on a GPU with CUDA graphs."""
    words = [f"model.d_model={scale.width}", f"model.n_layers={scale.layers}", "model.n_heads=4"]
    words = ["size=tiny", *words, f"train.sequence_length={min(scale.length, 128)}"]
    with tempfile.TemporaryDirectory() as name:
        plain = trial(scale, [*words, "train.compile=false"], Path(name))
        rows: Rows = []
        for mode in ("default", "reduce-overhead") if scale.is_gpu else ("default",):
            asked = [*words, "train.compile=true", f"train.compile_mode={mode}"]
            fast = trial(scale, asked, Path(name))
            rows.append(
                {
                    "mode": mode,
                    "eager tokens/s": plain["speed"],
                    "compiled tokens/s": fast["speed"],
                    "ratio": fast["speed"] / plain["speed"],
                    "difference of the loss": abs(fast["train/loss"] / plain["train/loss"] - 1),
                }
            )
    return rows


def precisions(scale: Scale) -> Rows:
    """The loss after the same steps, against float32."""
    rows: Rows = []
    with tempfile.TemporaryDirectory() as name:
        for kind in ("fp32", "bf16", "fp16", "fp16_protected"):
            words = ["size=tiny", f"precision={kind}", "optim.lr=1e-3"]
            found = trial(scale, words, Path(name))
            row = {"precision": kind, "loss": found["train/loss"]}
            rows.append({**row, "val/loss": found["val/loss"], "tokens/s": found["speed"]})
    for row in rows:
        row["over fp32"] = row["loss"] / rows[0]["loss"] - 1
        if not math.isfinite(row["loss"]):
            row["failed"] = "the loss is not finite"
    return rows


def throughput(scale: Scale) -> Rows:
    """Eager and compiled, bf16, full training steps."""
    rows: Rows = []
    with tempfile.TemporaryDirectory() as name:
        for preset, words in scale.presets.items():
            for compile in ("false", "true") if scale.is_gpu else ("false",):
                row: dict[str, Any] = {"size": preset, "compiled": compile == "true"}
                asked = [*words, "precision=bf16", f"train.compile={compile}"]
                try:
                    found = trial(scale, asked, Path(name))
                except (torch.OutOfMemoryError, AblateError) as error:
                    rows.append({**row, "refused": str(error).splitlines()[0][:80]})
                    continue
                row |= {"parameters": found["parameters"], "tokens/s": found["speed"]}
                row |= {"MFU %": found["percent"], "GiB": found["peak_memory"] / 2**30}
                rows.append({**row, "waits for data %": 100 * found["data_share"]})
    return rows


def stacks(scale: Scale) -> Rows:
    rows = []
    for width in scale.stacks:
        found = stacked.measure(width, scale.members, scale.steps, scale.device.type)
        names = {"width": "d", "members": "trials", "parameters": "parameters of each",
                 "plain_tokens_per_second": "one after another, tokens/s",
                 "stacked_tokens_per_second": "stacked, tokens/s", "ratio": "ratio",
                 "low": "low", "high": "high"}  # fmt: skip
        rows.append({shown: found[key] for key, shown in names.items()})
    return rows


def packed(scale: Scale) -> Rows:
    """Whole launches, start-up included: trials an hour with so many at once on the device."""
    rows: Rows = []
    trials = max(scale.packed)
    for at_once in scale.packed:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            (folder / "sweeps").mkdir()
            base = ["model=olmo2", "size=tiny", "train.validation_tokens=2000"]
            sweep = {"question": "speed", "baseline": base, "design": "one_factor",
                     "factors": {"init": ["init=mitchell"]}, "seeds": max(1, trials // 2),
                     "budget": {"steps": scale.steps}}  # fmt: skip
            text = "# @package _global_\n" + json.dumps({"sweep": sweep})
            (folder / "sweeps" / "speed.yaml").write_text(text)
            words = ["sweep=speed", f"cluster.workers={at_once}", "data=kjv"]
            words += [f"train.device={scale.device.type}"]
            began = time.perf_counter()
            done = subprocess.run([sys.executable, "-m", "ablate", "launch", *words], cwd=folder,
                                  capture_output=True, text=True, check=False)  # fmt: skip
            hours = (time.perf_counter() - began) / 3600
            row: dict[str, Any] = {"at once": at_once, "trials": 2 * max(1, trials // 2)}
            row["trials an hour"] = row["trials"] / hours
            if done.returncode:
                row["failed"] = (done.stderr.strip().splitlines() or ["no word"])[-1][:80]
            rows.append(row)
    for row in rows:
        row["ratio"] = row["trials an hour"] / rows[0]["trials an hour"]
    return rows


@dataclass(frozen=True)
class Part:
    title: str
    about: str
    measure: Callable[[Scale], Rows]


PARTS: dict[str, Part] = {
    "kernels": Part(
        "Attention kernels",
        "Largest difference of logits and of a gradient from float64 on the CPU, over the largest "
        "value. `refused`: this kernel has no such mask here, and says so.",
        kernels,
    ),
    "compile": Part("torch.compile", "The same trial twice.", compiled),
    "precision": Part("Precisions", "The same trial in each.", precisions),
    "throughput": Part(
        "Training steps of the presets",
        "OLMo 2-style, bf16, second half of the steps. Anchor: 46,037 tokens/s and 42 % MFU at 1B "
        "(llm-foundry, H100); the goal is 50 %.",
        throughput,
    ),
    "stacked": Part("Stacked trials against one after another", "benchmarks/stacked.py.", stacks),
    "packed": Part("Trials at once", "Launches from start to end.", packed),
}
