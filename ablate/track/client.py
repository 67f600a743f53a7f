"""wandb's client, tamed: quiet, bounded in time, and with errors that are one paragraph."""

from __future__ import annotations

import contextlib
import fcntl
import json
import netrc
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ablate.errors import AblateError, TrackError
from ablate.rundir import TrialDir, write_json
from ablate.track.facts import Facts

__all__ = [
    "choose_mode",
    "end_run",
    "import_wandb",
    "is_online_elsewhere",
    "last_step_of",
    "log_rows",
    "mark_online",
    "only_writer",
    "require_key",
    "start_run",
    "told",
    "why_offline",
]

INIT_SECONDS, FINISH_SECONDS = 20.0, 30.0
FOLDER, LOCK, ONLINE = "wandb", "lock", "online.json"
CONNECTED = "connected to "
"""What the mirror says in its log once the server has answered."""

NO_KEY = (
    "wandb has no API key here. Log in with `wandb login`, or set WANDB_API_KEY; or write runs "
    "that `wandb sync` can send from another machine: --offline."
)


def choose_mode(wanted: str, environment: Mapping[str, str]) -> str:
    """online, offline or disabled; `auto` follows WANDB_MODE, else whether there is a key."""
    if wanted != "auto":
        return wanted
    if environment.get("WANDB_MODE") in ("online", "offline", "disabled"):
        return environment["WANDB_MODE"]
    return "online" if has_key(environment) else "offline"


def why_offline(
    track: Mapping[str, Any], environment: Mapping[str, str] = os.environ
) -> str | None:
    """What a user should know who asked for wandb and gets offline runs, for want of a key."""
    if track.get("name") != "wandb" or track.get("mode", "auto") != "auto":
        return None
    if environment.get("WANDB_MODE") or has_key(environment):
        return None
    return (
        "wandb has no API key here, so its runs are written offline. `wandb login`, or "
        "WANDB_API_KEY, sends them as they go; `ablate sync STUDY` later. (track.mode=offline "
        "says that it is meant.)"
    )


def has_key(environment: Mapping[str, str]) -> bool:
    """Whether there is a key in the environment, or `wandb login` left one in the netrc file."""
    if environment.get("WANDB_API_KEY") or environment.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    try:
        hosts = netrc.netrc(os.environ.get("NETRC")).hosts
    except (OSError, netrc.NetrcParseError):
        return False
    own = environment.get("WANDB_BASE_URL", "")
    known = ("wandb", "coreweave")
    return any((own and host in own) or any(k in host for k in known) for host in hosts)


def require_key(environment: Mapping[str, str] = os.environ) -> None:
    if not has_key(environment):
        raise AblateError(NO_KEY)


def start_run(
    facts: Facts,
    *,
    mode: str,
    folder: Path,
    project: str | None = None,
    entity: str | None = None,
    finish_seconds: float = FINISH_SECONDS,
) -> Any:
    """The trial's run, resumed where it exists already; tokens are its x-axis.

    Args:
        facts: what the run is called and configured.
        mode: online or offline.
        folder: an existing one, for wandb's own files.
        project: None: as the trial's configuration says.
        entity: the same.
        finish_seconds: how long the end may wait for the server; then TimeoutError is raised.
    """
    wandb = import_wandb()
    settings = wandb.Settings(
        console="off",
        silent=True,
        disable_code=True,
        disable_git=True,
        x_disable_meta=True,
        x_disable_stats=True,
        x_save_requirements=False,
        init_timeout=INIT_SECONDS,
        finish_timeout=finish_seconds,  # without it a dead server holds finish() for ever
        finish_timeout_raises=True,
    )
    run = wandb.init(
        project=project or facts.track["project"],
        entity=entity or facts.track["entity"],
        id=facts.id,
        name=facts.name,
        group=facts.group,
        job_type=facts.job_type,
        tags=facts.tags,
        config=facts.config,
        dir=str(folder),
        mode=mode,
        resume="allow" if mode == "online" else None,
        settings=settings,
    )
    run.define_metric("tokens")
    run.define_metric("*", step_metric="tokens")
    return run


def log_rows(run: Any, rows: Iterable[Mapping[str, Any]], after: int = 0) -> tuple[int, int]:
    """Logs the rows behind step `after`, in order; (the last step that wandb has, rows logged)."""
    number = 0
    for row in rows:
        if row["step"] > after:
            run.log(dict(row), step=row["step"], commit=True)
            after, number = row["step"], number + 1
    return after, number


def last_step_of(run: Any) -> int:
    """The last step that the server has of a resumed run."""
    return max(0, run.starting_step - 1)


def import_wandb() -> Any:
    """wandb, with its reporting of errors to its makers off."""
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
    os.environ.setdefault("WANDB_SILENT", "true")
    import wandb

    return wandb


def end_run(run: Any, summary: Mapping[str, Any], status: str) -> None:
    """Writes the summary and ends the run; one that goes on later ends as preempted.

    Raises:
        TimeoutError: where the server did not take everything in time.
    """
    run.summary.update(dict(summary))
    if status in ("preempted", "running", "pending"):
        run.mark_preempting()
    run.finish(exit_code=0 if status == "done" else 1)


@contextlib.contextmanager
def only_writer(trial: TrialDir, *, wait: float = 0.0) -> Iterator[bool]:
    """Whether nobody else on this machine mirrors the trial; waits so many seconds for that.

    Where the folder cannot be written, nobody can be kept out.
    """
    path = trial.path / FOLDER / LOCK
    try:
        path.parent.mkdir(exist_ok=True)
        file = open(path, "w")  # noqa: SIM115 (closed below)
    except OSError:
        yield True
        return
    deadline = time.monotonic() + wait
    with file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    yield False
                    return
                time.sleep(0.1)
            except OSError:  # a file system without locks
                break
            else:
                break
        yield True


def mark_online(trial: TrialDir, run: Any) -> None:
    """Notes that a server has this run: from then on it is continued, never written offline."""
    where = {"id": run.id, "entity": run.entity, "project": run.project, "url": run.url}
    with contextlib.suppress(OSError):
        (trial.path / FOLDER).mkdir(exist_ok=True)
        write_json(trial.path / FOLDER / ONLINE, where)


def is_online_elsewhere(trial: TrialDir, facts: Facts) -> bool:
    """Whether a server has this run already."""
    try:
        noted = json.loads((trial.path / FOLDER / ONLINE).read_text())
        return noted["id"] == facts.id
    except (OSError, ValueError, KeyError, TypeError):
        return False


def told(error: BaseException) -> AblateError:
    """What wandb's client raised, as one paragraph with what to do."""
    host = os.environ.get("WANDB_BASE_URL") or "wandb's server"
    text = " ".join(str(error).split())[:400].rstrip(".")
    low = text.lower()
    if any(w in low for w in ("401", "403", "permission", "not logged in", "api key", "api_key")):
        return AblateError(
            f"{host} refused us: {text}. Check the key (`wandb login --relogin`) and that it may "
            "write to the project: --entity, --project."
        )
    return TrackError(
        f"{host} did not take it: {text or type(error).__name__}. The local files are whole; run "
        "the same command again later, it goes on where it stopped. Without a network: --offline."
    )
