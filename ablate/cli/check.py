"""`ablate plan --check`: every arm is built and proved causal, every toggle to change something."""

from __future__ import annotations

import dataclasses
from dataclasses import asdict, dataclass
from typing import Any

from ablate.config.imports import is_import_path, own_code
from ablate.config.sources import SOURCES
from ablate.errors import AblateError, PlanError
from ablate.launch.preflight import check_rules
from ablate.model import OLMo
from ablate.model import compare as models
from ablate.model.activations import activations
from ablate.model.causality import Leak, leaking_fields
from ablate.model.config import ModelConfig
from ablate.plan import Plan, PlannedArm, micro_batch, typed
from ablate.train.causal import REMEDY, leak_or_reason
from ablate.train.traced import has_instructions, shallow, trace

__all__ = ["Proof", "check"]

DROPOUTS = ("model.attention_dropout", "model.residual_dropout", "model.embedding_dropout")
MEASURED = ("cache.", "evaluate.")
"""Of the trained weights, at the end."""
RULES = ("optim", "schedule", "clip", "spikes")
ALLOWS = "train.check_causality"
"""It changes nothing by itself."""


@dataclass(frozen=True, kw_only=True)
class Proof:
    """How an arm was shown to differ from its reference."""

    arm: str
    reference: str | None
    parameters: int
    """Of the model built on the meta device."""
    proof: str
    not_causal: str | None
    """None: no output depends on later tokens. Else how it does, where train.check_causality is
    off, or why that could not be tested.
    """
    activations: int
    """Bytes by the formula, of a micro-batch in one process on a CPU, of so many layers."""
    tables: int
    """Of them, what all layers share: rotations, biases, masks."""
    traced: int | None
    """The same, counted in a forward pass on fake tensors."""
    not_traced: str | None
    """Why there is no such figure: fake tensors hold no values, and a class of the user's own may
    ask for one. It says nothing of whether the arm trains."""
    layers: int

    @property
    def off(self) -> float | None:
        """By what share of the traced bytes the formula is off. A table that no layer saves (it is
        kept for all steps, or until a layer is computed again) is there, and is not traced.
        """
        if self.traced is None:
            return None
        excess = self.activations - self.traced
        return (excess if excess < 0 else max(0, excess - self.tables)) / self.traced

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def check(plan: Plan) -> list[Proof]:
    """One proof for each arm.

    Raises:
        PlanError: where an arm cannot be built, has other parameters than the formula says, reads
            later tokens, or differs from its reference in nothing that matters.
    """
    configs = {arm.name: ModelConfig(**arm.config["model"]) for arm in plan.arms}
    built: dict[str, models.Built] = {}
    known: dict[str, dict[str, Any]] = {}
    causal: dict[str, str | None] = {}
    proofs = []
    for arm in plan.arms:
        model = configs[arm.name]
        parameters, built[arm.name] = _build(arm, model)
        if parameters != arm.parameters:
            raise PlanError(
                f"Arm {arm.name} has {parameters:,} parameters when built, but "
                f"{arm.parameters:,} by the formula of `ablate.model.count`. Please report it; "
                "until then its match and its cost are wrong."
            )
        _check_rules(arm, model)
        not_causal = _not_causal(arm, model, causal)
        proof = "built"
        if arm.reference is not None:
            alike = _alike(model, configs[arm.reference]) if plan.match != "none" else model
            own = built[arm.name] if alike == model else _build(arm, alike)[1]
            proof = _proof(arm, built[arm.reference], own)
        proofs.append(
            Proof(
                arm=arm.name,
                reference=arm.reference,
                parameters=parameters,
                proof=proof,
                not_causal=not_causal,
                **_activations(arm, model, known),
            )
        )
    return proofs


def _check_rules(arm: PlannedArm, model: ModelConfig) -> None:
    """Ours are tested elsewhere; a user's own rule of training shows only when it is called."""
    if not any(is_import_path(str(arm.config[of]["name"])) for of in RULES):
        return
    trial, length = typed(arm.config), arm.config["train"]["sequence_length"]
    on_meta = OLMo(model.replace(init_device="meta"), init_params=False)
    try:
        check_rules(trial, on_meta, length or model.max_sequence_length)
    except AblateError as error:
        raise PlanError(f"Arm {arm.name} cannot be built: {error}") from error


def _not_causal(arm: PlannedArm, model: ModelConfig, known: dict[str, str | None]) -> str | None:
    """See `Proof.not_causal`; `known`: of arms with the same model."""
    train = arm.config["train"]
    length = train["sequence_length"] or model.max_sequence_length
    key = repr((model, length))
    if key in known:
        return known[key]
    leak, untested = leak_or_reason(model, length)
    if leak is not None and train.get("check_causality", True):
        raise PlanError(_accusation(arm, model, length, leak))
    known[key] = untested if leak is None else f"reads later tokens: {leak}"
    return known[key]


def _accusation(arm: PlannedArm, model: ModelConfig, length: int, leak: Leak) -> str:
    own = model.own_modules
    if not own:
        return f"Arm {arm.name} reads later tokens: {leak}. Please report it."
    named = ", ".join(f"model.{name}={own[name]}" for name in leaking_fields(model, length))
    return f"Arm {arm.name} ({named}) reads later tokens: {leak}. {REMEDY}."


def _activations(
    arm: PlannedArm, model: ModelConfig, known: dict[str, dict[str, Any]]
) -> dict[str, Any]:
    """Of its micro-batch, by the formula and as autograd keeps them; `known`: of other arms."""
    trial = typed(arm.config)
    head = not trial.loss.chunk
    partly = trial.precision.foundation_layers
    few = shallow(model) if partly is None else model  # its layers are not alike
    given = micro_batch(trial, few, processes=arm.memory.processes, device="cpu")
    native = has_instructions(given.precision)
    given = dataclasses.replace(given, native=native, documents=False, compiled=False)
    key = repr((few, given, head))
    if key not in known:
        counted, reason = None, None
        try:
            counted = trace(few, given, head=head).kept
        except Exception as error:  # classes of the user's own raise what they like
            reason = " ".join(f"{type(error).__name__}: {error}".split())
        formula = activations(few, given, head=head)
        known[key] = {
            "activations": formula.kept,
            "tables": formula.tables,
            "traced": counted,
            "not_traced": reason,
            "layers": few.n_layers,
        }
    return known[key]


def _build(arm: PlannedArm, model: ModelConfig) -> tuple[int, models.Built]:
    length = arm.config["train"]["sequence_length"] or model.max_sequence_length
    try:
        return models.meta_parameters(model), models.build(model, length)
    except Exception as error:  # classes of the user's own raise what they like
        if isinstance(error, AblateError):
            raise PlanError(f"Arm {arm.name} cannot be built: {error}") from error
        said = " ".join(f"{type(error).__name__}: {error}".split()).rstrip(".")
        if own := own_code(error, {f"model.{k}": v for k, v in arm.config["model"].items()}):
            said += (
                f". {own}. Mend it: it is given tensors of any width in their last axis, and "
                "returns the same shape (an activation `multiplier` times that width)"
            )
        raise PlanError(f"Arm {arm.name} cannot be built: {said}.") from error


def _alike(model: ModelConfig, reference: ModelConfig) -> ModelConfig:
    """The arm at its reference's size: what matching resized is no effect of the toggle."""
    return model.replace(
        n_layers=reference.n_layers,
        mlp_hidden_size=reference.hidden_size,
        block_group_size=reference.block_group_size,
    )


def _proof(arm: PlannedArm, reference: models.Built, own: models.Built) -> str:
    # A digest of code is that of its field.
    change = list(dict.fromkeys(f.removeprefix(f"{SOURCES}.") for f in arm.change))
    outside = [f for f in change if f in DROPOUTS or not f.startswith("model.")]
    architecture = [f for f in change if f not in outside]
    training = [f for f in outside if f != ALLOWS]
    what = "what is measured" if all(f.startswith(MEASURED) for f in training) else "the training"
    if training and not architecture:
        return f"{what} differs in {', '.join(training)}"
    found = models.compare(reference, own)
    if found.what is None and not training:
        raise PlanError(
            f"Arm {arm.name} changes {', '.join(change)}, but under the same weights its "
            f"outputs, gradients and initial weights equal those of {arm.reference} up to "
            f"rounding ({found.size:.0e}). It can show no effect; compare speeds with `ablate "
            "bench`, or remove the toggle."
        )
    also = f"; {what} differs in {', '.join(training)}" if training else ""
    return f"{found} from {arm.reference}{also}"
