"""All ranks of a trial stop at one step. Two processes, gloo on loopback."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

from ablate.launch.ranks import Rank, agree

ROOT = Path(__file__).parents[2]

CODE = """\
import torch.distributed as distributed
from ablate.launch.ranks import agree, rank_of
rank = rank_of()
place = {"rank": rank.rank, "world_size": rank.world_size}
distributed.init_process_group("gloo", init_method="env://", **place)
for step in range(1, 10):
    reason = agree("stopped by SIGUSR2" if (rank.rank, step) == (1, 4) else None)
    if reason:
        print(step, reason)
        break
distributed.destroy_process_group()
"""


def test_alone_the_reason_is_what_it_was() -> None:
    assert agree(None) is None
    assert agree("stopped") == "stopped"


def test_the_wish_of_one_rank_stops_all_at_the_same_step() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    ranks = [Rank(rank=r, world_size=2, local_rank=r, master_port=port) for r in range(2)]
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", CODE],
            env={**os.environ, "PYTHONPATH": str(ROOT), **rank.variables()},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in ranks
    ]
    said = [p.communicate(timeout=120)[0].strip() for p in processes]
    assert said == ["4 stopped with the others", "4 stopped by SIGUSR2"]
