"""One trial in several processes. `team.py`: how they meet, agree, and part; `alone.py`: what a
step asks of them, and the answers of one process; `replicated.py`: those of several that have the
whole model (DDP); `sharded.py`: those of several that have parts of it (FSDP2, HSDP).
"""

from __future__ import annotations

from ablate.config.schema import TrialConfig
from ablate.train.parallel.alone import Alone
from ablate.train.parallel.replicated import Replicated
from ablate.train.parallel.team import Team

__all__ = ["Alone", "Team", "build_parallel"]


def build_parallel(config: TrialConfig) -> Alone:
    """The part of this process: `Alone`, or one of several.

    Raises:
        ConfigError: where so many processes cannot share the work.
    """
    team = Team.current()
    if team is None or team.world_size == 1:
        return Alone()
    config.parallel.check(config.train, team.world_size)
    if config.parallel.name == "ddp":
        return Replicated(team, config)
    from ablate.train.parallel.sharded import Sharded  # FSDP takes long to import

    return Sharded(team, config)
