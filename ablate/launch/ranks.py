"""The place of this process among those of one trial.

SLURM starts one task a GPU and says where each stands; torchrun says the same in variables of its
own, which are left as they are.
"""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["Rank", "rank_of"]

FIRST_PORT, PORTS = 20000, 20000


@dataclass(frozen=True, kw_only=True)
class Rank:
    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    master_addr: str = "127.0.0.1"
    master_port: int = FIRST_PORT

    def variables(self) -> dict[str, str]:
        """What torch.distributed's `env://` reads."""
        return {
            "RANK": str(self.rank),
            "WORLD_SIZE": str(self.world_size),
            "LOCAL_RANK": str(self.local_rank),
            "MASTER_ADDR": self.master_addr,
            "MASTER_PORT": str(self.master_port),
        }


def rank_of(environment: Mapping[str, str] | None = None) -> Rank:
    """From torchrun's variables where they are there, else from SLURM's; else the only one."""
    env = os.environ if environment is None else environment
    if "TORCHELASTIC_RUN_ID" in env or ("RANK" in env and "WORLD_SIZE" in env):
        return Rank(
            rank=int(env["RANK"]),
            world_size=int(env["WORLD_SIZE"]),
            local_rank=int(env.get("LOCAL_RANK", 0)),
            master_addr=env.get("MASTER_ADDR", "127.0.0.1"),
            master_port=int(env.get("MASTER_PORT", FIRST_PORT)),
        )
    if "SLURM_STEP_NODELIST" not in env or int(env.get("SLURM_STEP_NUM_TASKS", 1)) == 1:
        return Rank()
    # The port follows from the job and its step, so every task knows it without asking.
    number = int(env["SLURM_JOB_ID"]) * 7 + int(env.get("SLURM_STEP_ID", 0))
    return Rank(
        rank=int(env["SLURM_PROCID"]),
        world_size=int(env["SLURM_STEP_NUM_TASKS"]),
        local_rank=int(env["SLURM_LOCALID"]),
        master_addr=first_host(env["SLURM_STEP_NODELIST"], env.get("SLURM_LAUNCH_NODE_IPADDR")),
        master_port=FIRST_PORT + number % PORTS,
    )


def first_host(nodes: str, address: str | None = None) -> str:
    """The first host of SLURM's list, such as `node[3-5,9]`; its `address` where the name means
    nothing to the network.
    """
    name = nodes
    if "[" in nodes or "," in nodes:
        words = ["scontrol", "show", "hostnames", nodes]
        done = subprocess.run(words, capture_output=True, text=True, timeout=30, check=True)
        name = done.stdout.split()[0]
    if address is not None:
        try:
            socket.getaddrinfo(name, None)
        except OSError:
            return address
    return name
