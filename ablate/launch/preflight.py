"""What can be found wrong before anything is written: the folder, the data, the device, names that
must be importable.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ablate.config.imports import users_own
from ablate.config.schema import TrialConfig
from ablate.data import Data, check_inference, open_data, open_shifted
from ablate.errors import ConfigError
from ablate.launch.room import check_fits
from ablate.rundir import (
    StudyDir,
    check_frozen_data,
    check_writable,
    data_key,
    frozen_data,
    keep_data,
    refuse_other_text,
)

__all__ = [
    "check_data", "check_data_of_all", "check_runs_dir", "check_training", "check_training_of_all",
    "freeze_data",
]  # fmt: skip


def check_runs_dir(folder: Path) -> None:
    """Raises ConfigError for a folder in which no study can be made."""
    check_writable(folder, "runs_dir", "Name another: runs_dir=FOLDER")


def check_data(config: Mapping[str, Any], *, progress: bool = False) -> Data:
    """Prepares the trial's data if it was not yet, and checks that they fit its model.

    Raises:
        DataError, ConfigError: naming what is wrong and the remedy.
    """
    typed = TrialConfig.from_mapping(config)
    data = open_data(typed.data, eos_token_id=typed.model["eos_token_id"], progress=progress)
    data = data.with_batching(typed.batching)
    length = typed.train.sequence_length or typed.model["max_sequence_length"]
    data.check(typed.model["vocab_size"], length)
    check_inference(data, typed.cache)
    if typed.evaluate.shifted_data is not None:
        open_shifted(typed.evaluate.shifted_data, typed.data, data, progress=progress)
    return data


def check_data_of_all(
    configs: Iterable[Mapping[str, Any]], study: StudyDir | None = None
) -> dict[str, str]:
    """`check_data` of many trials, which have most of it in common; shows its progress.

    Args:
        configs: of the trials.
        study: theirs, which must have begun with these texts, if it has begun.

    Returns:
        What `freeze_data` keeps.
    """
    checked: list[tuple[Any, ...]] = []
    found: dict[str, str] = {}
    for config in configs:
        model, train = config["model"], config["train"]
        lengths = train["sequence_length"], model["max_sequence_length"]
        asked = (
            config["data"],
            config.get("batching"),
            config.get("evaluate"),
            config.get("cache"),
            model["vocab_size"],
            model["eos_token_id"],
            *lengths,
        )
        if asked not in checked:
            checked.append(asked)
            data = check_data(config, progress=True)
            found[data_key(config)] = data.fingerprint
            if study is not None:
                check_frozen_data(study.path, config, data.fingerprint)
    if study is not None and study.exists() and not frozen_data(study.path):
        _check_by_summaries(study, found)
    return found


def _check_by_summaries(study: StudyDir, found: Mapping[str, str]) -> None:
    """Of a study that an older version launched: one trial of each arm tells what it ran on."""
    seen: set[str] = set()
    for entry in study.manifest().get("trials", []):
        trial = study.trial(entry["id"])
        if entry["arm"] in seen or not trial.summary_path.exists():
            continue
        seen.add(entry["arm"])
        summary, config = trial.summary() or {}, trial.config()
        recorded = summary.get("data_fingerprint")
        if "data" in config and recorded and data_key(config) in found:
            refuse_other_text(study.path, config, recorded, found[data_key(config)])


def freeze_data(study: StudyDir, found: Mapping[str, str]) -> None:
    """Keeps with which texts the study was launched; what it has stands."""
    if set(found) - set(frozen_data(study.path)):
        with study.lock():
            keep_data(study.path, found)


def check_training(config: Mapping[str, Any], *, new: bool = False, who: str = "The trial") -> None:
    """Puts the trial together without weights (on the meta device) or data. Imports torch.

    Args:
        config: of the trial.
        new: it has not begun, so a model that reads later tokens is refused too.
        who: needs more memory than there is, in that refusal.

    Raises:
        ConfigError: for a device that is not there, a name that cannot be imported, ...
    """
    from ablate.model import ModelConfig, OLMo
    from ablate.model.compile_rule import check_mode
    from ablate.train.causal import require_causal
    from ablate.train.device import choose_device
    from ablate.train.kernel import attention_of
    from ablate.train.memory import check_memory, device_memory
    from ablate.train.parallel.units import units
    from ablate.train.precision import Precision

    typed = TrialConfig.from_mapping(config)
    train, device = typed.train, choose_device(typed.train.device)
    model_config = ModelConfig.from_mapping({**typed.model, "init_device": "meta"})
    length = train.sequence_length or model_config.max_sequence_length
    if length > model_config.max_sequence_length:
        reason = f"exceeds model.max_sequence_length={model_config.max_sequence_length}"
        raise ConfigError("train.sequence_length", length, reason)
    attention_of(typed, model_config, device)
    check_mode(typed, device.type)
    if typed.parallel.name == "none":  # else it is not known here how many share a batch
        check_memory(typed, sequence_length=length, device=device)
    check_fits(config, device.type, device_memory(device), who)
    Precision(typed.precision, device)
    model: Any = OLMo(model_config, init_params=False)
    if train.activation_checkpointing is not None:
        model.set_activation_checkpointing(train.activation_checkpointing)
    if typed.parallel.divides:
        list(units(model, typed.parallel.wrapping_strategy, head=not typed.loss.chunk))
    check_rules(typed, model, length)
    if new:
        require_causal(typed, model_config)


def check_rules(config: TrialConfig, model: Any, length: int) -> None:
    """Builds optimiser, clipping, schedule and response: some may be the user's own.

    Args:
        config: of the trial.
        model: of it, on any device.
        length: tokens a sequence.

    Raises:
        ConfigError: naming the one that cannot be built.
    """
    from ablate.train.clip import build_clip
    from ablate.train.optim import build_optimiser
    from ablate.train.respond import build_response
    from ablate.train.schedule import build_schedule

    train = config.train
    build_optimiser(model, config.optim)
    build_clip(config.clip, [name for name, _ in model.named_parameters()], config.optim.betas)
    tokens = train.batch_size * length
    rate = build_schedule(
        config.schedule, peak=config.optim.lr, steps=train.steps, tokens_per_step=tokens
    )
    with users_own("schedule.name", config.schedule.name):
        rate(1)
    build_response(config.spikes, train.steps)


def check_training_of_all(named: Iterable[tuple[str, Mapping[str, Any]]]) -> None:
    """`check_training` of many trials on this machine, once for those that differ in seed alone.

    Args:
        named: what each is called in a refusal, and its configuration.
    """
    checked: list[dict[str, Any]] = []
    for who, config in named:
        asked = {**config, "seed": None}
        if asked not in checked:
            checked.append(asked)
            check_training(config, who=who)
