"""What one trial is made of, assembled from its configuration."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from ablate.config.schema import TrialConfig
from ablate.data import (
    IGNORED,
    Batch,
    Data,
    check_inference,
    open_data,
    open_shifted,
    repetitive,
)
from ablate.errors import ConfigError, DataError
from ablate.model import ModelConfig
from ablate.model.compile_rule import Decision, check_mode, decide
from ablate.spikes import Detector
from ablate.train.batch import TensorBatch
from ablate.train.checkpoint import Checkpoint
from ablate.train.clip import Clip, build_clip
from ablate.train.compiling import Compiled, compile_model
from ablate.train.kernel import attention_of
from ablate.train.loss import chunked_loss, language_loss
from ablate.train.memory import check_memory
from ablate.train.optim import build_optimiser
from ablate.train.parallel import Alone
from ablate.train.phases import Phases
from ablate.train.precision import Precision
from ablate.train.respond import Observe, build_response
from ablate.train.schedule import Rate, build_schedule, warmup_steps

__all__ = ["Run", "assemble"]

UPDATED = ("optimiser", "clip", "precision")
"""The parts of a run, besides the model, that an update changes: what a rewind puts back."""
STATEFUL = (*UPDATED, "detector", "response")
"""Those that carry anything from one step to the next."""


@dataclass(kw_only=True)
class Run:
    config: TrialConfig
    model_config: ModelConfig
    data: Data
    model: nn.Module
    forward: Callable[..., Any]
    """The model, or what synchronises it."""
    compiled: Compiled | None
    """None: nothing is."""
    compiling: Decision
    names: list[str]
    parameters: list[nn.Parameter]
    optimiser: Any
    clip: Clip
    rate: Rate
    warmup: int
    """The step at which it ends."""
    precision: Precision
    device: torch.device
    sequence_length: int
    detector: Detector
    response: Observe
    parallel: Alone
    phases: Phases
    attention: dict[str, str]
    """The kernels that compute it in a step, each with the reason."""
    shifted: Data | None = None
    """Text of another domain, where it is to be validated too."""

    @property
    def tokens_per_step(self) -> int:
        return self.config.train.batch_size * self.sequence_length

    def next_batch(self, step: int) -> Batch:
        """What `step` trains on."""
        return self.make_batch(self.response.batch(step))

    def make_batch(self, number: int) -> Batch:
        """Of the trial's order; with filter_repetitions, repetitive rows have no labels."""
        c = self.config.train
        batch = self.data.batch(
            number,
            seed=self.config.seed,
            batch_size=c.batch_size,
            sequence_length=self.sequence_length,
            rows=self.parallel.rows(c),
        )
        if c.filter_repetitions:
            rows = repetitive(batch.input_ids)
            return dataclasses.replace(batch, labels=np.where(rows[:, None], IGNORED, batch.labels))
        return batch

    def losses(self, model: Callable[..., Any], part: TensorBatch) -> Float[Tensor, " 2"]:
        """Nats and z-loss, summed over the real labels of a micro-batch."""
        loss = self.config.loss
        if loss.chunk:
            with self.precision.autocast():
                hidden = model(**part.model_inputs, unembed=False).logits
                head: Any = self.model.unembedding
                return chunked_loss(
                    hidden,
                    head,
                    part.labels,
                    loss.z_loss,
                    loss.chunk,
                    self.precision.protects_loss,
                )
        if self.compiled is not None and model is self.forward and torch.is_grad_enabled():
            return self.compiled.losses(self, model, part)
        with self.precision.autocast():
            logits = model(**part.model_inputs).logits
        return language_loss(logits, part.labels, loss.z_loss, self.precision.protects_loss)

    def gradients(self) -> list[Tensor]:
        """What lies here of them."""
        return self.parallel.local([p.grad for p in self.parameters if p.grad is not None])

    def discard_gradients(self) -> None:
        """The end of a step, or of a batch that is not taken."""
        self.precision.update()
        self.clear_gradients()

    def clear_gradients(self) -> None:
        for parameter in self.parameters:  # the optimiser's own method asks for hooks first
            parameter.grad = None

    def set_rate(self, step: int) -> float:
        """The learning rate of `step`: for all, or for those parameters that have no other."""
        factor = self.response.rate(step)
        rate = self.rate(step) * factor
        settled = self.rate(max(step, self.warmup)) * factor
        for group in self.optimiser.param_groups:
            group["lr"] = settled if "settled" in group else rate
            if "lr_multiplier" in group:
                group["lr"] *= group["lr_multiplier"]
        return rate

    def begin_step(self, step: int) -> None:
        """Tells norms with noise what they draw it from, and CUDA graphs that what they made of the
        step before is no longer wanted.
        """
        if self.compiled is not None and self.config.train.compile_mode != "default":
            torch.compiler.cudagraph_mark_step_begin()
        moment = getattr(self.model, "moment", None)
        if moment is not None:
            moment.seed, moment.step = self.config.seed, step
            moment.steps, moment.rank = self.config.train.steps, self.parallel.rank

    def begin_part(self, number: int, labels: int) -> None:
        """Of a micro-batch, in a batch of so many labels."""
        moment = getattr(self.model, "moment", None)
        if moment is not None:
            moment.micro_batch = number
            moment.gradient_unit = self.precision.scale / max(labels, 1)

    def capture(self) -> dict[str, Any]:
        """A copy of what an update changes, in the host's memory."""
        parts = {part: getattr(self, part).state_dict() for part in UPDATED}
        return copied({**parts, "model": self.model.state_dict()})

    def put_back(self, state: dict[str, Any]) -> None:
        """The weights and the optimiser of a `capture`."""
        self.model.load_state_dict(state["model"])
        for part in UPDATED:
            getattr(self, part).load_state_dict(copied(state[part]))

    def model_state(self) -> dict[str, Any]:
        """With nothing but the trial's own: a weight of one that is stacked is a slice of a tensor
        of all members, and would be written with that.
        """
        state = self.model.state_dict()
        return {name: _on_its_own(tensor) for name, tensor in state.items()}

    def train_state(self, but: str = "") -> dict[str, Any]:
        parts = {part: getattr(self, part).state_dict() for part in STATEFUL if part != but}
        return {**parts, "data_fingerprint": self.data.fingerprint}

    def restore(self, checkpoint: Checkpoint) -> None:
        """Raises DataError as `accept` does."""
        if checkpoint.model is None:
            return
        self.accept(checkpoint)
        self.model.load_state_dict(checkpoint.model)
        self.optimiser.load_state_dict(checkpoint.train["optimiser"])

    def accept(self, checkpoint: Checkpoint) -> None:
        """All of a checkpoint but weights and optimiser.

        Raises:
            DataError: where the text has changed since (another Python's stdlib, say).
        """
        before = checkpoint.train.get("data_fingerprint")
        if before != self.data.fingerprint:
            raise DataError(
                f"This trial began on other data than {self.data.name} is now (fingerprint "
                f"{str(before)[:8]}, now {self.data.fingerprint[:8]}). Give it back the files "
                "that it began with, or start it afresh with force=true."
            )
        for part in STATEFUL:
            if part == "optimiser":
                continue
            state = checkpoint.train[part]
            getattr(self, part).load_state_dict(copied(state) if part == "response" else state)


def copied(value: Any) -> Any:
    """A copy, tensors on the CPU."""
    if isinstance(value, Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, dict):
        return {k: copied(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(copied(v) for v in value)
    return value


def assemble(config: TrialConfig, device: torch.device, parallel: Alone | None = None) -> Run:
    """Model, data, optimiser and the rest, as `config` says, on `device`.

    Args:
        config: of the trial.
        device: of this process.
        parallel: the part of this process, where the trial has several.

    Raises:
        ConfigError, DataError: for what cannot be trained, before the first step.
    """
    c, model_config = config.train, ModelConfig.from_mapping(config.model)
    # `meta` in every official OLMo YAML. First weights come from the CPU's generators everywhere.
    model_config = model_config.replace(init_device=None)
    length = c.sequence_length or model_config.max_sequence_length
    if length > model_config.max_sequence_length:
        reason = f"exceeds model.max_sequence_length={model_config.max_sequence_length}"
        raise ConfigError("train.sequence_length", length, reason)
    ranks = 1 if parallel is None else parallel.world_size
    check_memory(config, sequence_length=length, device=device, ranks=ranks)
    attention = attention_of(config, model_config, device)
    check_mode(config, device.type)
    compiling = decide(config, model_config, device.type)
    data = open_data(config.data, eos_token_id=model_config.eos_token_id)
    data = data.with_batching(config.batching)
    data.check(model_config.vocab_size, length)
    check_inference(data, config.cache)
    named, shifted = config.evaluate.shifted_data, None
    if named is not None:
        shifted = open_shifted(named, config.data, data)

    precision, parallel = Precision(config.precision, device), parallel or Alone()
    model: Any = parallel.build(model_config, config.seed, precision)
    if c.activation_checkpointing is not None:
        model.set_activation_checkpointing(c.activation_checkpointing)
    named = dict(model.named_parameters())
    tokens_per_step = c.batch_size * length
    return Run(
        config=config,
        model_config=model_config,
        data=data,
        model=model,
        forward=parallel.forward(model),
        compiled=compile_model(model, config, device) if compiling.compiled else None,
        compiling=compiling,
        names=list(named),
        parameters=list(named.values()),
        optimiser=build_optimiser(model, config.optim, config.schedule.foundation_layers),
        clip=build_clip(config.clip, list(named), config.optim.betas, list(named.values())),
        rate=build_schedule(
            config.schedule, peak=config.optim.lr, steps=c.steps, tokens_per_step=tokens_per_step
        ),
        warmup=warmup_steps(config.schedule, steps=c.steps, tokens_per_step=tokens_per_step),
        precision=precision,
        device=device,
        sequence_length=length,
        detector=Detector(),
        response=build_response(config.spikes, c.steps),
        parallel=parallel,
        phases=Phases(device),
        attention=attention,
        shifted=shifted,
    )


def _on_its_own(tensor: Tensor) -> Tensor:
    return tensor.clone() if tensor.untyped_storage().nbytes() > tensor.nbytes else tensor
