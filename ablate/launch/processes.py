"""Several processes for one trial: the first leads, the others follow.

The first runs the program as if it were alone, inside `leading`; the others `follow`: they train
what it says, and write nothing but their logs.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ablate.config.schema import ParallelConfig, TrainConfig
from ablate.config.typed import build
from ablate.errors import ConfigError, DivergedError, LostProcessError
from ablate.launch.outcome import classify, reason_of
from ablate.launch.ranks import rank_of
from ablate.launch.stop import Stop
from ablate.rundir import Attempt, TrialDir

if TYPE_CHECKING:
    from ablate.train.parallel import Team

__all__ = ["FENCED_OFF", "check", "follow", "leading", "team_of"]

log = logging.getLogger("ablate")

FENCED_OFF = "fenced off"
"""Said by the first process where a newer attempt runs the trial: nothing is saved any more."""


def check(config: Mapping[str, Any], processes: int) -> None:
    """Refuses what training cannot do: copies of one trial would each train the whole of it.

    Raises:
        ConfigError: naming the field.
    """
    parallel = build(ParallelConfig, config.get("parallel") or {}, "parallel")
    parallel.check(build(TrainConfig, config["train"], "train"), processes)


def team_of(trial: TrialDir) -> Team | None:
    """The processes that train with this one, which leads them; None where it is alone.

    Raises:
        ConfigError: for several that do not know of each other, or cannot share the work.
    """
    rank = rank_of()
    if rank.world_size == 1:
        return None
    check(trial.config(), rank.world_size)
    from ablate.train.parallel import Team

    found = Team.current()
    if found is None:
        reason = "only `ablate train` and SLURM's own tasks run a trial in several processes"
        raise ConfigError("WORLD_SIZE", rank.world_size, reason, "Start one process")
    return found


@contextlib.contextmanager
def leading() -> Iterator[None]:
    """Around what the first process does: the others are dismissed at the end."""
    rank = rank_of()
    if rank.world_size == 1:
        yield
        return
    from ablate.train.parallel import Team

    team = Team.meet(rank.variables())
    try:
        yield
    finally:
        team.dismiss()


def follow(patient: bool = False) -> int:
    """What every process but the first does: trains what it is told, until it is dismissed.

    Args:
        patient: see `Stop`.

    Returns:
        The exit code: 0, or 1 where this process failed or lost the others.
    """
    from ablate.train import run_trial
    from ablate.train.parallel import Team

    stop = Stop(patient=patient)
    with stop.listening():
        try:
            team = Team.meet(rank_of().variables())
            while (order := team.order()) is not None:
                stop.stepping = False
                attempt = Attempt(TrialDir(Path(order["trial"])), order["attempt"])
                with _logged(attempt, team.rank):
                    if not _train_along(run_trial, attempt, team, stop):
                        return 1
        except (LostProcessError, KeyboardInterrupt) as error:
            log.error("%s", reason_of(error))
            return 1
    return 0


def _train_along(run_trial: Any, attempt: Attempt, team: Team, stop: Stop) -> bool:
    """Whether this process can go on: its training ended as that of the others did."""

    def should_stop() -> str | None:
        stop.stepping = True
        reason = team.agree(stop.asked())
        if reason == FENCED_OFF:
            raise _FencedOffError
        return reason

    try:
        run_trial(attempt, attempt.trial.config(), should_stop=should_stop)
    except (DivergedError, _FencedOffError):
        return True  # all have come to the same
    except KeyboardInterrupt:
        team.report("preempted", f"{stop.reason or 'interrupted'}, before it could save")
    except Exception as error:
        why = team.explain(error)
        log.error("%s", reason_of(why), exc_info=error)
        team.report(classify(why), reason_of(why))
    else:
        return True
    return False


class _FencedOffError(Exception):
    pass


@contextlib.contextmanager
def _logged(attempt: Attempt, rank: int) -> Iterator[None]:
    """Beside the attempt's log, `log.<rank>`."""
    path = attempt.log_path.with_name(f"{attempt.log_path.name}.{rank}")
    handler, root = logging.FileHandler(path, delay=True), logging.getLogger()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)
        handler.close()
