"""Optimisers and their parameter groups.

Torch's own where it has one: AdamW (fused: 3 to 4 times as fast as its default loop, on a CPU too)
and Muon. Lion is ours. Decay follows OLMo: matrices of linear layers decay; biases, norms and
embeddings (token and position, so a tied head too) do not, unless the configuration says so.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from ablate.config.imports import is_import_path, load_object, users_own
from ablate.config.schema import OptimConfig
from ablate.errors import ConfigError
from ablate.model.foundation import in_foundation
from ablate.model.names import NORM_SLOTS
from ablate.train.adamw import FusedAdamW
from ablate.train.lean import postpone_dynamo

__all__ = ["OPTIMISERS", "Lion", "MuonAdamW", "build_optimiser", "parameter_groups"]

Groups = list[dict[str, Any]]
EMBEDDING_SLOTS = ("wte", "wpe", "position")


def kind_of(model: nn.Module, name: str) -> str | None:
    """bias, norm, embedding, matrix, or None where a parameter fits none of them."""
    path, _, leaf = name.rpartition(".")
    module = model.get_submodule(path)
    if leaf.endswith("bias"):
        return "bias"
    slot = path.rpartition(".")[2]
    if isinstance(module, nn.Embedding) or slot in EMBEDDING_SLOTS:
        return "embedding"
    if slot.endswith("norm") or slot in NORM_SLOTS or isinstance(module, nn.LayerNorm | nn.RMSNorm):
        return "norm"
    return "matrix" if isinstance(module, nn.Linear) and leaf == "weight" else None


def parameter_groups(
    model: nn.Module, config: OptimConfig, foundation_layers: int | None = None
) -> Groups:
    """One group of decayed and one of undecayed parameters, as (name, parameter) sorted by name.

    Where some parameters have another learning rate, there are more, with the keys `settled` (no
    warm-up: not in the foundation of so many layers) and `lr_multiplier` (scale or shift of a
    norm). `Run.set_rate` reads them.

    Raises:
        ConfigError: for a parameter that OLMo's rule does not classify.
    """
    decays = {
        "matrix": True,
        "embedding": config.decay_embeddings,
        "norm": config.decay_norm_and_bias,
        "bias": config.decay_norm_and_bias,
    }
    size = getattr(getattr(model, "config", None), "block_group_size", 1)
    chosen: dict[tuple[bool, float, bool], list[tuple[str, nn.Parameter]]] = {
        (True, 1.0, False): [],
        (False, 1.0, False): [],
    }
    for name, parameter in sorted(model.named_parameters()):
        if not parameter.requires_grad:
            continue
        kind = kind_of(model, name)
        if kind is None:
            raise ConfigError(
                "optim.weight_decay",
                config.weight_decay,
                f"what of parameter {name}? It is no bias, norm, embedding or linear weight",
                "Hold it in nn.Linear or nn.Embedding, or give it a name that ends in bias",
            )
        settled = not in_foundation(name, foundation_layers, size)
        key = (decays[kind], _multiplier(name, kind, config), settled)
        chosen.setdefault(key, []).append((name, parameter))
    groups: Groups = []
    for (decayed, multiplier, settled), members in chosen.items():
        group = {"params": members, "weight_decay": config.weight_decay if decayed else 0.0}
        group |= {"lr_multiplier": multiplier} if multiplier != 1 else {}
        groups += [group | ({"settled": True} if settled else {})] if members else []
    return groups


def _multiplier(name: str, kind: str, config: OptimConfig) -> float:
    """Of the learning rate of a norm's scale or shift."""
    slot, leaf = name.split(".")[-2:] if "." in name else ("", name)
    if slot in NORM_SLOTS and leaf == "bias":
        return config.norm_shift_lr
    return config.norm_scale_lr if kind == "norm" else 1.0


def build_optimiser(
    model: nn.Module, config: OptimConfig, foundation_layers: int | None = None
) -> torch.optim.Optimizer | MuonAdamW:
    """The optimiser that `config` names, over `model`'s parameter groups.

    `foundation_layers` is the schedule's.

    An import path names a class called with the groups and those of lr, betas, eps, weight_decay
    and momentum that its signature has.
    """
    postpone_dynamo()
    groups = parameter_groups(model, config, foundation_layers)
    if is_import_path(config.name):
        cls = load_object("optim.name", config.name)
        offered = {
            k: getattr(config, k) for k in ("lr", "betas", "eps", "weight_decay", "momentum")
        }
        with users_own("optim.name", config.name):
            accepted = inspect.signature(cls).parameters
            given = {k: v for k, v in offered.items() if k in accepted}
            return cls(groups, **given)
    return OPTIMISERS[config.name](model, config, groups)


def _adamw(model: nn.Module, config: OptimConfig, groups: Groups) -> torch.optim.Optimizer:
    return _fused_adamw(groups, config)


def _fused_adamw(groups: Groups, config: OptimConfig) -> torch.optim.Optimizer:
    beta1, beta2 = config.betas
    return FusedAdamW(
        groups,
        lr=config.lr,
        betas=(beta1, beta2),
        eps=config.eps,
        weight_decay=config.weight_decay,
    )


def _lion(model: nn.Module, config: OptimConfig, groups: Groups) -> torch.optim.Optimizer:
    beta1, beta2 = config.betas
    return Lion(
        groups,
        lr=config.lr,
        betas=(beta1, beta2),
        weight_decay=config.weight_decay,
    )


def _muon(model: nn.Module, config: OptimConfig, groups: Groups) -> MuonAdamW:
    return MuonAdamW(model, config, groups)


OPTIMISERS: dict[str, Callable[[nn.Module, OptimConfig, Groups], Any]] = {
    "adamw": _adamw,
    "lion": _lion,
    "muon": _muon,
}


class Lion(torch.optim.Optimizer):
    """p <- p (1 - lr wd) - lr sign(b1 m + (1 - b1) g), m <- b2 m + (1 - b2) g (2302.06675)."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            parameters = [p for p in group["params"] if p.grad is not None]
            gradients = [p.grad for p in parameters]
            moments = [self._moment(p) for p in parameters]
            (beta1, beta2), lr = group["betas"], group["lr"]
            updates = torch._foreach_lerp(moments, gradients, 1 - beta1)
            torch._foreach_sign_(updates)
            torch._foreach_mul_(parameters, 1 - lr * group["weight_decay"])
            torch._foreach_add_(parameters, updates, alpha=-lr)
            torch._foreach_lerp_(moments, gradients, 1 - beta2)

    def _moment(self, parameter: Tensor) -> Tensor:
        state = self.state[parameter]
        if not state:
            state["exp_avg"] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
        return state["exp_avg"]


class MuonAdamW:
    """torch's Muon on the matrices inside the blocks, AdamW on everything else, as one optimiser.

    Muon's update is scaled to AdamW's usual size (`match_rms_adamw`, arXiv 2502.16982), so that one
    learning rate and one decay serve both. Embeddings and the output head are left to AdamW, as
    Muon's author advises.
    """

    def __init__(self, model: nn.Module, config: OptimConfig, groups: Groups) -> None:
        matrices, rest = _split_matrices(model, groups)
        self.parts: list[torch.optim.Optimizer] = []
        if rest:
            self.parts.append(_fused_adamw(rest, config))
        if matrices:
            muon = torch.optim.Muon(
                matrices, lr=config.lr, momentum=config.momentum, adjust_lr_fn="match_rms_adamw"
            )
            self.parts.append(muon)

    @property
    def param_groups(self) -> Groups:
        return [g for part in self.parts for g in part.param_groups]

    def step(self) -> None:
        for part in self.parts:
            part.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        for part in self.parts:
            part.zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        return {"parts": [part.state_dict() for part in self.parts]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for part, values in zip(self.parts, state["parts"], strict=True):
            part.load_state_dict(values)


def _split_matrices(model: nn.Module, groups: Groups) -> tuple[Groups, Groups]:
    """Each group's hidden matrices, and what is left of it; empty groups are dropped."""
    head = model.get_parameter(HEAD) if HEAD in dict(model.named_parameters()) else None
    split: tuple[Groups, Groups] = ([], [])
    for group in groups:
        muon = [
            (n, p) for n, p in group["params"] if kind_of(model, n) == "matrix" and p is not head
        ]
        names = {n for n, _ in muon}
        for part, members in zip(
            split, (muon, [(n, p) for n, p in group["params"] if n not in names]), strict=True
        ):
            if members:
                part.append({**group, "params": members})
    return split


HEAD = "transformer.ff_out.weight"
"""An untied head; upstream's name."""
