"""A saved view of the study in wandb: its runs grouped by arm, against tokens, verdicts beside."""

from __future__ import annotations

import hashlib
import importlib.util
import logging
from collections.abc import Sequence
from typing import Any

from ablate.errors import AblateError
from ablate.track.client import import_wandb, require_key, told

__all__ = ["require_workspaces", "save_view", "view_name"]

MISSING = (
    "--workspace needs the package wandb-workspaces, which is not installed. Add it with "
    "`pip install 'ablate[workspace]'`, or leave --workspace out."
)
SECTIONS = {
    "Held out": ["val/bpb", "val/loss", "val/perplexity"],
    "Training": ["train/loss", "train/grad_norm", "train/update_norm", "lr"],
    "Cost": ["tokens_per_second"],
}
COLUMNS = [
    "config:arm",
    "config:seed",
    "summary:verdict",
    "summary:verdict/difference",
    "summary:verdict/low",
    "summary:verdict/high",
    "summary:status",
]


def require_workspaces() -> None:
    """Raises AblateError, before anything is sent, where the package is missing."""
    if importlib.util.find_spec("wandb_workspaces") is None:
        raise AblateError(MISSING)


def view_name(study: str, created: Any) -> str:
    """The view's internal name: the same every time, so that it is saved over itself."""
    return f"nw-{hashlib.sha256(f'{study}/{created}'.encode()).hexdigest()[:11]}-v"


def save_view(
    study: str,
    *,
    created: Any,
    entity: str | None,
    project: str,
    metric: str,
    factors: Sequence[str],
    measured: Sequence[str],
) -> str:
    """Saves the view, or saves it again, and returns its address.

    Args:
        study: its name, which is the group of its runs.
        created: when it was frozen.
        entity: None: the key's own.
        project: where the runs are.
        metric: that decides: it is plotted first.
        factors: columns of the table.
        measured: what the runs recorded; other panels would stay empty.

    Raises:
        AblateError: without the package or a key, or where the server refuses or is away.
    """
    require_workspaces()
    require_key()
    wandb = import_wandb()
    logging.getLogger("wandb").setLevel(logging.ERROR)
    try:
        entity = entity or wandb.Api(timeout=20).default_entity
        view = _view(study, created, str(entity), project, metric, factors, measured)
        return str(view.save().url)
    except AblateError:
        raise
    except Exception as error:
        raise told(error) from None


def _view(
    study: str,
    created: Any,
    entity: str,
    project: str,
    metric: str,
    factors: Sequence[str],
    measured: Sequence[str],
) -> Any:
    import wandb_workspaces.reports.v2 as wr
    import wandb_workspaces.workspaces as ws
    from wandb_workspaces.expr import And
    from wandb_workspaces.workspaces.internal import View

    sections = []
    known = {"Decides": [metric], **SECTIONS}
    seen: set[str] = set()
    for title, metrics in known.items():
        shown = [m for m in metrics if m in measured and m not in seen]
        seen.update(shown)
        panels: list[Any] = [wr.LinePlot(title=m, x="tokens", y=[m]) for m in shown]
        if title == "Decides":
            panels.append(wr.BarPlot(title=f"{metric}, last", metrics=[metric]))
        if panels:
            sections.append(ws.Section(name=title, panels=panels, is_open=title != "Cost"))
    plain = "".join(c for c in study if ord(c) < 0x2190)  # no emoji: wandb refuses them
    view = ws.Workspace(
        entity=entity,
        project=project,
        name=f"ablate: {plain}",
        sections=sections,
        settings=ws.WorkspaceSettings(x_axis="tokens", max_runs=100),
        runset_settings=ws.RunsetSettings(
            filters=And(ws.Metric("Group") == study),
            groupby=[ws.Config("arm")],
            order=[ws.Ordering(ws.Config("arm"), ascending=True)],
            pinned_columns=[*COLUMNS[:2], *(f"config:factor.{f}" for f in factors), *COLUMNS[2:]],
        ),
    )
    view._internal_name = view_name(study, created)
    try:
        view._internal_id = View.from_name(entity, project, view._internal_name).id
    except ValueError:  # not saved before
        view._internal_id = ""
    return view
