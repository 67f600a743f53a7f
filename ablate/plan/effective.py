"""What a run reads of its configuration, and what it ignores.

Two configurations with the same effective form compute the same thing: a toggle between them is
inert. The table of fields that are read under a condition only is the heart of the promise that
nothing is silently without effect; `ablate plan --check` proves the same on the built models.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ablate.config.fingerprint import NESTED, TOP_LEVEL, fingerprint
from ablate.config.imports import is_import_path
from ablate.config.schema.amount import amount
from ablate.model.config import ModelConfig
from ablate.model.widths import is_uniform, resolved

__all__ = ["OF_THE_RUN", "ROADS", "effective", "effective_fingerprint", "unread"]

ROADS = ("block_type", "block_group_size", "attention_backend", "flash_attention")
"""Fields of the model that choose an implementation; outputs agree up to rounding."""


OF_THE_RUN = "it does not change the result"
"""Why fields are not read that say where and how a trial runs."""


def unread(config: Mapping[str, Any]) -> dict[str, str]:
    """Dotted field -> why the run of this resolved configuration never reads it."""
    return dict(_unread(config, ModelConfig(**config["model"])))


def effective(config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration with ignored fields null, and one spelling for each meaning."""
    model = ModelConfig(**config["model"])
    result = {k: dict(v) if isinstance(v, Mapping) else v for k, v in config.items()}
    for field, _ in _unread(config, model):
        section, _, name = field.partition(".")
        if name and name in result.get(section, {}):
            result[section][name] = None
    length = config["train"]["sequence_length"] or model.max_sequence_length
    windows = [min(model.window(i) or length, length) for i in range(model.n_layers)]
    result["model"].update(
        n_kv_heads=model.effective_n_kv_heads,
        multi_query_attention=None,
        mlp_ratio=None,
        mlp_hidden_size=model.hidden_size,
        embedding_size=model.embedding_rows,
        rope=None,
        alibi=None,
        position=model.position_scheme,
        sliding_window=None if min(windows) >= length else windows,
        sliding_window_pattern=None,
        sliding_window_full_last=None,
    )
    if result["model"]["bias_for_layer_norm"] is not None or _norm_has_affine(model):
        result["model"]["bias_for_layer_norm"] = model.norm_bias
    if model.layer_norm_type == "low_precision" and config["precision"]["name"] != "bf16":
        # It differs under autocast only, and precision=fp16 computes every norm in float16.
        result["model"]["layer_norm_type"] = "default"
    if model.init_fn in ("mitchell", "full_megatron"):
        result["model"]["init_cutoff_factor"] = model.init_cutoff_factor or 3.0
    result["train"]["sequence_length"] = length
    if not is_uniform(model):
        told = resolved(model)
        result["model"].update(layer_widths=told.layer_widths, mlp_hidden_size=told.hidden_size)
        if model.norm_noise == 0:
            result["model"]["foundation_layers"] = None
    else:
        result["model"]["layer_widths"] = None
    if config["schedule"]["foundation_layers"] == model.n_layers and not _has_more(model):
        result["schedule"]["foundation_layers"] = None
    result["model"].update(width_taper=None, width_segments=None, width_match=None)
    if result["schedule"]["warmup"] is not None and not is_import_path(config["schedule"]["name"]):
        result["schedule"]["warmup"] = _warmup(config, length)
    return result


def _has_more(c: ModelConfig) -> bool:
    """Whether any parameter lies above the blocks: a head, a final norm's, a projection."""
    if is_import_path(c.layer_norm_type) or not c.weight_tying:
        return True
    return c.layer_norm_with_affine or not is_uniform(c)


def _warmup(config: Mapping[str, Any], length: int) -> Any:
    """Of wsds, where a fraction is one of a period, as it is written; else in steps."""
    written, train = config["schedule"]["warmup"], config["train"]
    if config["schedule"]["name"] == "wsds":
        return written
    kind, number = amount("schedule.warmup", written)
    if kind == "fraction":
        return round(number * train["steps"])
    return round(number / (train["batch_size"] * length) if kind == "tokens" else number)


def effective_fingerprint(config: Mapping[str, Any]) -> str:
    """Of an arm: the seed does not count."""
    return fingerprint({**effective(config), "seed": 0})


def _norm_has_affine(c: ModelConfig) -> bool:
    return c.layer_norm_with_affine or (
        c.attention_layer_norm and c.attention_layer_norm_with_affine
    )


def _unread(config: Mapping[str, Any], c: ModelConfig) -> Iterator[tuple[str, str]]:
    for field in TOP_LEVEL:
        yield field, OF_THE_RUN
    for section, names in NESTED.items():
        for name in names:
            yield f"{section}.{name}", OF_THE_RUN
    road = "it is another road to the same function (`ablate bench` times roads)"
    for name in ROADS:
        yield f"model.{name}", road
    if not c.own_modules:
        yield "train.check_causality", "no module of the model is your own"
    if config["precision"]["name"] == "fp32":
        yield "model.rope_full_precision", "everything is in float32"
    yield from _unread_of_positions(c)
    yield from _unread_of_windows(c, config["train"]["sequence_length"] or c.max_sequence_length)
    if not c.attention_layer_norm:
        for name in ("attention_layer_norm_with_affine", "attention_layer_norm_per_head"):
            yield f"model.{name}", "there is no QK-norm (attention_layer_norm is false)"
    if not _norm_has_affine(c):
        yield "model.bias_for_layer_norm", "no norm has an affine part"
    yield from _unread_of_noise(config, c)
    if c.mlp_hidden_size is not None:
        yield "model.mlp_ratio", f"mlp_hidden_size={c.mlp_hidden_size} holds"
    if not c.has_position_table and config["train"]["sequence_length"] is not None:
        yield "model.max_sequence_length", "train.sequence_length holds and no position is learned"
    yield from _unread_of_init(c)
    yield from _unread_of_training(config)


def _unread_of_positions(c: ModelConfig) -> Iterator[tuple[str, str]]:
    scheme = c.position_scheme
    if is_import_path(scheme):
        return
    reason = f"the position scheme is {scheme}"
    if scheme != "alibi":
        yield "model.alibi_bias_max", reason
    if scheme != "rope":
        for name in ("rope_theta", "rope_full_precision", "yarn_factor"):
            yield f"model.{name}", reason
    if scheme != "rope" or c.yarn_factor is None:
        for name in ("yarn_original_length", "yarn_beta_fast", "yarn_beta_slow"):
            yield f"model.{name}", "yarn_factor is null" if scheme == "rope" else reason
    if scheme != "hybrid":
        for name in ("hybrid_amplitude", "hybrid_learned_std"):
            yield f"model.{name}", reason
    if scheme != "relative":
        for name in ("relative_num_buckets", "relative_max_distance"):
            yield f"model.{name}", reason


def _unread_of_noise(config: Mapping[str, Any], c: ModelConfig) -> Iterator[tuple[str, str]]:
    if c.norm_noise == 0:
        for name in ("norm_noise_at", "norm_noise_schedule"):
            yield f"model.{name}", "norm_noise is 0"
    if c.norm_grad_clip is None:
        yield "model.norm_grad_clip_by", "norm_grad_clip is null"
    if c.width_taper == 1:
        for name in ("width_segments", "width_match"):
            yield f"model.{name}", "width_taper is 1"
    elif c.foundation_layers is not None:
        yield "model.width_segments", "foundation_layers says where the width changes"
    if is_import_path(c.layer_norm_type):
        return
    scales = c.layer_norm_scale and c.layer_norm_with_affine
    inner = c.attention_layer_norm and c.attention_layer_norm_with_affine
    if not (scales or inner):
        yield "optim.norm_scale_lr", "no norm has a scale"
    if not (_norm_has_affine(c) and c.norm_bias):
        yield "optim.norm_shift_lr", "no norm has a shift"


def _unread_of_windows(c: ModelConfig, length: int) -> Iterator[tuple[str, str]]:
    if c.sliding_window_pattern is None:
        yield "model.sliding_window_full_last", "there is no sliding_window_pattern"
    widths = [c.window(i) or length for i in range(c.n_layers)]
    if min(widths) >= length:
        reason = f"no window is shorter than the sequence of {length} tokens"
        for name in ("sliding_window", "sliding_window_pattern", "sliding_window_full_last"):
            yield f"model.{name}", reason


def _unread_of_init(c: ModelConfig) -> Iterator[tuple[str, str]]:
    if c.init_fn == "mitchell":
        yield "model.init_std", "init_fn=mitchell has its own"
    if c.init_fn != "full_megatron":
        yield "model.scale_emb_init", f"only init_fn=full_megatron reads it, not {c.init_fn}"
    elif c.emb_init_std is not None:
        yield "model.scale_emb_init", f"emb_init_std={c.emb_init_std:g} holds"


SPIKES = {
    "sigmas": ("skip_step", "skip_batch", "clip_update"),
    "window": ("skip_step", "skip_batch", "clip_update"),
    "rewind_steps": ("rewind",),
    "skip_batches": ("rewind",),
    "lr_factor": ("lower_lr",),
    "lr_steps": ("lower_lr",),
    "patience": ("stop",),
    "limit": ("skip_step", "skip_batch", "rewind", "lower_lr"),
}
"""Field of the section spikes -> the responses that read it."""


CLIPS = {
    "max_norm": ("norm", "percentile_history", "zclip"),
    "max_ratio": ("ratio",),
    "max_value": ("value",),
    "percentile": ("percentile", "percentile_history"),
    "history": ("percentile_history",),
    "agc_ratio": ("agc",),
    "agc_floor": ("agc",),
    "z_limit": ("zclip",),
    "z_decay": ("zclip",),
}
"""Field of the section clip -> the rules that read it."""


def _unread_of_spikes(name: str) -> Iterator[tuple[str, str]]:
    for field, readers in SPIKES.items():
        if name not in readers and not is_import_path(name):
            yield f"spikes.{field}", f"only {' and '.join(readers)} read it, not {name}"


def _unread_of_cache(cache: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    name = cache["name"]
    reads = {"none": (), "full": ("tokens", "chunk"), "window": ("budget", "tokens", "chunk")}
    own = ("budget", "recent", "sinks", "tokens", "chunk")
    reads |= {"lru": reads["window"], "dynamic_as_published": reads["window"]}
    reads |= {"heavy_hitter": own, "dynamic": (*own, "mixture")}
    for field in (*own, "mixture"):
        if field not in reads[name]:
            yield f"cache.{field}", f"cache.name={name} does not read it"
    if not cache.get("preheat"):  # an older trial has no such field
        for field in ("preheat_n", "prompts", "prompt_tokens"):
            yield f"cache.{field}", "cache.preheat is 0"


def _unread_of_training(config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield from _unread_of_spikes(config["spikes"]["name"])
    clip, optim, schedule = config["clip"], config["optim"], config["schedule"]
    for name, readers in CLIPS.items():
        if clip["name"] not in readers and not is_import_path(clip["name"]):
            known = ", ".join(readers) + (" read" if len(readers) > 1 else " reads")
            yield f"clip.{name}", f"only clip.name={known} it, not {clip['name']}"
    if clip["name"] == "none":
        for name in ("warmup_steps", "warmup_factor"):
            yield f"clip.{name}", "nothing is clipped"
    elif clip["warmup_steps"] == 0:
        yield "clip.warmup_factor", "clip.warmup_steps is 0"
    elif clip["warmup_factor"] == 1:
        yield "clip.warmup_steps", "clip.warmup_factor is 1"
    if not is_import_path(optim["name"]):
        if optim["name"] != "muon":
            yield "optim.momentum", f"only optim.name=muon reads it, not {optim['name']}"
        if optim["name"] == "lion":
            yield "optim.eps", "Lion has none"
        if optim["weight_decay"] == 0:
            for name in ("decay_norm_and_bias", "decay_embeddings"):
                yield f"optim.{name}", "optim.weight_decay is 0"
    if not is_import_path(schedule["name"]):
        readers = {"exponent": "power_lr", "lr_min": "exponential", "periods": "wsds"}
        for name, reader in readers.items():
            if schedule["name"] != reader:
                yield (
                    f"schedule.{name}",
                    f"only schedule.name={reader} reads it, not {schedule['name']}",
                )
        if schedule["name"] in ("constant", "constant_with_warmup"):
            for name in ("alpha_f", "t_max", "decay"):
                yield f"schedule.{name}", "the learning rate never decays"
        if schedule["name"] == "constant":
            for name in ("warmup", "warmup_min_lr"):
                yield f"schedule.{name}", "the learning rate is constant"
        elif amount("schedule.warmup", schedule["warmup"])[1] == 0:
            yield "schedule.warmup_min_lr", "schedule.warmup is 0"
    yield from _unread_of_cache(config.get("cache", {"name": "none"}))
    batching = config.get("batching", {"name": "concat"})["name"]  # of an older trial
    if batching != "dynamic":
        for name in ("cap", "bucket"):
            yield f"batching.{name}", f"only batching.name=dynamic reads it, not {batching}"
    if not config["precision"]["name"].startswith("fp16"):
        yield "precision.initial_scale", "only fp16 and fp16_protected scale gradients"
    data = config["data"]
    if data["tokenizer"] != "bpe":
        yield "data.tokenizer_vocab_size", "only data.tokenizer=bpe reads it"
    parallel = config.get("parallel", {"name": "none"})["name"]
    if parallel == "none":
        yield "parallel.timeout", "one process waits for no other"
    if parallel not in ("fsdp", "hsdp"):
        yield "parallel.wrapping_strategy", f"only fsdp and hsdp read it, not {parallel}"
    if parallel != "hsdp":
        yield "parallel.shard_size", f"only parallel=hsdp reads it, not {parallel}"
