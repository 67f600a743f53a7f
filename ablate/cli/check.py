"""`ablate plan --check`: every arm is built, every toggle proved to change function or training."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from ablate.errors import ConfigError, PlanError
from ablate.model import compare as models
from ablate.model.config import ModelConfig
from ablate.plan import Plan, PlannedArm

__all__ = ["Proof", "check"]

DROPOUTS = ("model.attention_dropout", "model.residual_dropout", "model.embedding_dropout")
TRAINING = ("optim.", "schedule.", "clip.", "precision.", "loss.", "data.", "train.")


@dataclass(frozen=True, kw_only=True)
class Proof:
    """How an arm was shown to differ from its reference."""

    arm: str
    reference: str | None
    parameters: int
    """Of the model built on the meta device."""
    proof: str

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def check(plan: Plan) -> list[Proof]:
    """One proof for each arm.

    Raises:
        PlanError: where an arm cannot be built, has other parameters than the formula says, or
            differs from its reference in nothing that matters.
    """
    built: dict[str, models.Built] = {}
    proofs = []
    for arm in plan.arms:
        model = ModelConfig(**arm.config["model"])
        length = arm.config["train"]["sequence_length"] or model.max_sequence_length
        try:
            parameters = models.meta_parameters(model)
            built[arm.name] = models.build(model, length)
        except (ConfigError, RuntimeError, NotImplementedError, ImportError) as error:
            raise PlanError(f"Arm {arm.name} cannot be built: {error}") from error
        if parameters != arm.parameters:
            raise PlanError(
                f"Arm {arm.name} has {parameters:,} parameters when built, but "
                f"{arm.parameters:,} by the formula. Parameters of a class of your own are "
                "unknown to the formula: use sweep.match=none."
            )
        proofs.append(
            Proof(
                arm=arm.name,
                reference=arm.reference,
                parameters=parameters,
                proof=_proof(arm, built),
            )
        )
    return proofs


def _proof(arm: PlannedArm, built: dict[str, models.Built]) -> str:
    if arm.reference is None:
        return "built"
    training = [f for f in arm.change if f in DROPOUTS or f.startswith(TRAINING)]
    architecture = [f for f in arm.change if f not in training]
    if not architecture:
        return f"the training differs in {', '.join(training)}"
    found = models.compare(built[arm.reference], built[arm.name])
    if found.what is None and not training:
        raise PlanError(
            f"Arm {arm.name} changes {', '.join(architecture)}, but under the same weights its "
            f"outputs, gradients and initial weights equal those of {arm.reference} up to "
            f"rounding ({found.size:.0e}). It can show no effect; compare speeds with `ablate "
            "bench`, or remove the toggle."
        )
    also = f"; the training differs in {', '.join(training)}" if training else ""
    return f"{found} from {arm.reference}{also}"
