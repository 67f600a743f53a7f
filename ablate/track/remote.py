"""What a wandb server holds. Every row is read, never a sample."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ablate.errors import DataError
from ablate.track.client import import_wandb, require_key, told
from ablate.track.records import Record

__all__ = ["Held", "held_runs", "open_api", "read_project"]

PER_PAGE, ROWS_PER_PAGE = 200, 1000
SECONDS = 20
Held = dict[str, Mapping[str, Any]]
"""Run id -> its summary."""


def open_api() -> Any:
    """The public API of wandb.

    Raises:
        AblateError: without a key, or where the server refuses or is away.
    """
    require_key()
    try:
        return import_wandb().Api(timeout=SECONDS)
    except Exception as error:
        raise told(error) from None


def held_runs(entity: str | None, project: str, group: str) -> Held:
    """The runs of a group and what their summaries say; none where there is no such project.

    Raises:
        AblateError: without a key, or where the server refuses or is away.
    """
    api = open_api()  # it remembers what it was asked: a fresh one each time
    try:
        path = f"{entity or api.default_entity}/{project}"
        runs = api.runs(path, filters={"group": group}, per_page=PER_PAGE, lazy=False)
        return {run.id: dict(run.summary_metrics or {}) for run in runs}
    except ValueError as error:  # "Could not find project"
        if "find project" in str(error):
            return {}
        raise told(error) from None
    except Exception as error:
        raise told(error) from None


def read_project(path: str, filters: Mapping[str, Any] | None = None) -> Iterator[Record]:
    """Every run of ENTITY/PROJECT (or PROJECT) with its whole history.

    `scan_history` with keys drops the rows that lack any of them, so it is asked without: rows
    then come as they were logged.

    Raises:
        DataError: where there is no such project.
        AblateError: without a key, or where the server refuses or is away.
    """
    api = open_api()
    try:
        runs = api.runs(path, filters=dict(filters or {}), per_page=PER_PAGE, lazy=False)
        for run in runs:
            yield _record(run)
    except ValueError as error:
        if "find project" in str(error):
            raise DataError(
                f"There is no wandb project {path!r}, or this key may not read it."
            ) from None
        raise told(error) from None
    except DataError:
        raise
    except Exception as error:
        raise told(error) from None


def _record(run: Any) -> Record:
    record = Record(
        id=run.id,
        name=run.name or "",
        group=run.group,
        job_type=run.job_type,
        project=run.project,
        tags=list(run.tags or []),
        state=run.state,
        config={k: v for k, v in dict(run.config).items() if not k.startswith("_")},
    )
    record.add_summary(dict(run.summary_metrics or {}))
    # Not from the cache on disk: a run that went on since would be cut short.
    for row in run.scan_history(page_size=ROWS_PER_PAGE, use_cache=False):
        record.add(row)
    return record
