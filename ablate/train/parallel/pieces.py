"""A divided run as named tensors, and back: what a checkpoint of it holds.

model/<parameter>                 its weights
optimiser/<parameter>/<name>      the optimiser's state of it
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor

from ablate.train import shards
from ablate.train.checkpoint import Checkpoint, names_of
from ablate.train.shards import MODEL, OPTIMISER

__all__ = ["put_into", "small_state", "tensors_of"]


def tensors_of(run: Any) -> dict[str, Tensor]:
    """Whole or in part, as they lie in this process."""
    found = {f"{MODEL}/{name}": value for name, value in run.model.state_dict().items()}
    for name, parameter in zip(run.names, run.parameters, strict=True):
        for key, value in run.optimiser.state.get(parameter, {}).items():
            found[f"{OPTIMISER}/{name}/{key}"] = value
    return {name: value.detach() for name, value in found.items()}


def small_state(run: Any) -> dict[str, Any]:
    """The rest of what a checkpoint holds; equal in every process."""
    groups = run.optimiser.state_dict()["param_groups"]
    return {**run.train_state(but="optimiser"), "optimiser": {"state": {}, "param_groups": groups}}


@torch.no_grad()
def put_into(run: Any, folder: Path, read: Checkpoint) -> None:
    """Weights and optimiser state of a sound checkpoint, of several processes or of one."""
    if read.model is not None:
        _put_whole(run, read.model, read.train["optimiser"])
        return
    parameters = dict(zip(run.names, run.parameters, strict=True))
    state: dict[str, dict[str, Tensor]] = {name: {} for name in parameters}
    wanted = {f"{MODEL}/{k}": v.detach() for k, v in run.model.state_dict().items()}
    for full, (shape, dtype) in shards.shapes(folder).items():
        kind, _, rest = full.partition("/")
        if kind == OPTIMISER:
            name, _, key = rest.rpartition("/")
            like = parameters[name]
            value = torch.zeros(shape, dtype=dtype, device=like.device)
            if shape == tuple(like.shape):
                value = torch.zeros_like(like, dtype=dtype)
            state[name][key] = wanted[full] = value
    shards.read_into(folder, wanted)
    for name, parameter in parameters.items():
        run.optimiser.state[parameter] = state[name]


def _put_whole(run: Any, model: dict[str, Tensor], optimiser: dict[str, Any]) -> None:
    for name, value in run.model.state_dict().items():
        value.copy_(divided(model[name], value))
    ids = {name: id for id, name in names_of(optimiser).items()}
    for name, parameter in zip(run.names, run.parameters, strict=True):
        state = optimiser["state"].get(ids.get(name), {})
        run.optimiser.state[parameter] = {
            key: divided(value, parameter) if value.shape == parameter.shape
            else value.to(parameter.device)
            for key, value in state.items()
        }  # fmt: skip


def divided(whole: Tensor, like: Tensor) -> Tensor:
    """This process's part of a tensor that every process has whole."""
    whole = whole.to(like.device)
    if not isinstance(like, DTensor):
        return whole
    return distribute_tensor(whole, like.device_mesh, like.placements, src_data_rank=None)
