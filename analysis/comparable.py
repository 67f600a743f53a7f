"""Which trials may be compared: whatever is not the factor under test must be the same."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any

import pandas as pd

from ablate.analysis.frames import Frames
from ablate.config.fingerprint import NESTED, TOP_LEVEL
from ablate.config.schema.data import held_out
from ablate.errors import StudyError

__all__ = [
    "changes_result",
    "check_comparable",
    "declared_fields",
    "device_kind",
    "other_budgets",
    "other_texts",
]

_RECORDED = {
    "data_fingerprint": ("data",),
    "device": ("train.device",),
    "torch": (),
    "torch_version": (),
    "code_version": (),
    "commit": (),
    "source": (),
}
"""What the trials recorded about themselves, and the fields whose being under test excuses a
difference."""

_ARMS_OWN = {"seed"}


def check_comparable(frames: Frames, pairs: Iterable[tuple[str, str]]) -> None:
    """Refuses a comparison of arm and reference that differ in more than they declare.

    Raises:
        StudyError: naming the field, both values and the trials.
    """
    ran = frames.trials[frames.trials["status"].isin(["done", "diverged"])]
    done = ran[ran["status"] == "done"]
    for row in done[done["step"] < done["steps"]].itertuples():
        raise StudyError(
            f"steps: trial {row.id} ended at step {row.step} of {row.steps}. Unfinished schedules "
            f"say nothing about finished ones: finish it with `ablate launch`, or leave it out."
        )
    study = next(iter(frames.manifests), "")
    arms = {a["name"]: a for a in frames.manifests.get(study, {}).get("arms", [])}
    bracket = ran.groupby("arm")["lr"].nunique().max() if len(ran) else 0
    ignored = _ARMS_OWN | ({"optim.lr"} if bracket >= 1 else set())
    rows: dict[str, list[dict[str, Any]]] = {}
    needed = ["study", "id", "arm", "status", "steps", *(c for c in _RECORDED if c in ran)]
    for row in ran[needed].to_dict("records"):
        rows.setdefault(row["arm"], []).append(row)
    seen = {arm: _fields(frames, group, ignored) for arm, group in rows.items()}
    for arm, fields in seen.items():
        for name, values in fields.items():
            if len(values) > 1:
                (a, one), (b, other) = list(values.items())[:2]
                _refuse(name, a, one, b, other, f"two trials of arm {arm}")
    for arm, reference in pairs:
        if arm not in seen or reference not in seen:
            continue
        declared = declared_fields(arms.get(arm, {})) | declared_fields(arms.get(reference, {}))
        for name in sorted(seen[arm].keys() | seen[reference].keys()):
            ours, theirs = seen[arm].get(name), seen[reference].get(name)
            if ours is None or theirs is None:
                if name in _RECORDED or name == "steps":
                    # Not recorded by an older version, or every curve from elsewhere diverged and
                    # has no length; nothing is known to differ.
                    continue
                ours, theirs = (
                    ours or {"not set": f"arm {arm}"},
                    theirs or {"not set": f"arm {reference}"},
                )
            (a, one), (b, other) = next(iter(ours.items())), next(iter(theirs.items()))
            if a != b and not _excused(name, declared, seen[arm].keys() ^ seen[reference].keys()):
                _refuse(name, a, one, b, other, f"arm {arm} and its reference {reference}")


def declared_fields(arm: Mapping[str, Any]) -> set[str]:
    """The fields that an arm changes on purpose: its difference to the baseline, and what was
    resized.
    """
    resized = arm.get("resized") or {}
    return set(arm.get("diff") or {}) | set(resized) | {f"model.{k}" for k in resized}


def other_budgets(frames: Frames, pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Arms that were trained for longer or shorter than their references though nobody planned
    to compare budgets, and what is said of them.

    In a sweep a budget that differs is a factor, and written down before; trials that were run one
    by one declare whatever they differ in.
    """
    (manifest,) = frames.manifests.values()
    if manifest.get("decide") and manifest.get("design") != "singles":
        return {}
    trials = frames.trials[frames.trials["status"].isin(["done", "diverged"])]
    seen = {unit: _each(trials, unit) for unit in ("tokens", "steps")}
    said = {}
    for arm, reference in pairs:
        for unit, amounts in seen.items():
            mine, theirs = amounts.get(arm), amounts.get(reference)
            if mine is None or theirs is None:
                continue
            if mine != theirs:
                said[arm] = (
                    f"trained for {mine:,.0f} {unit}, its reference for {theirs:,.0f}: no verdict "
                    f"on different budgets. Run both with the same train.steps, or make it a "
                    f"factor of a sweep"
                )
            break  # as many tokens in fewer steps are the same budget
    return said


def other_texts(frames: Frames, pairs: Iterable[tuple[str, str]], metric: str) -> dict[str, str]:
    """Arms that were evaluated on other text than their references though nobody planned it, and
    what is said of them. In a sweep the plan says it before the runs.
    """
    (manifest,) = frames.manifests.values()
    if not metric.startswith("val/") or manifest.get("design") != "singles":
        return {}
    arms = {(t.study, t.id): t.arm for t in frames.trials.itertuples()}
    texts = {}
    for trial, config in frames.configs.items():
        data = {k.removeprefix("data."): v for k, v in config.items() if k.startswith("data.")}
        texts[arms[trial]] = held_out(defaultdict(lambda: None, data))
    said = (
        f"evaluated on other held-out text than its reference: no verdict on {metric} of different "
        f"texts. Run both with the same data.validation_path, or make data a factor of a sweep"
    )
    return {
        arm: said
        for arm, reference in pairs
        if arm in texts and reference in texts and texts[arm] != texts[reference]
    }


def _each(trials: pd.DataFrame, unit: str) -> dict[str, float]:
    """Of each arm the tokens or steps of a trial, as far as they are known."""
    if unit not in trials:
        return {}
    known = trials[pd.to_numeric(trials[unit]).notna()]
    return {str(a): float(v.iloc[0]) for a, v in known.groupby("arm", observed=True)[unit]}


def _excused(name: str, declared: set[str], lone: Set[str]) -> bool:
    """Whether a difference is under test: the field, one above it, or what it holds is declared.

    Args:
        name: of the field.
        declared: fields that arm or reference change on purpose.
        lone: fields that only one of the two has. A field that is null in one and a mapping in the
            other is among them, and so are the keys below it, each of which is judged by itself.
    """
    roots = _RECORDED.get(name)
    if roots is None:
        below = {d for d in declared if d.startswith(name + ".")}
        return any(name == d or name.startswith(d + ".") for d in declared) or (
            name in lone and not below.isdisjoint(lone)
        )
    return any(d == r or d.startswith(r + ".") for d in declared for r in roots)


def _fields(
    frames: Frames, trials: Sequence[Mapping[str, Any]], ignored: set[str]
) -> dict[str, dict[str, str]]:
    """For each field its values (as text), and for each value a trial that has it."""
    recorded = [c for c in _RECORDED if trials and c in trials[0]]
    fields: dict[str, dict[str, str]] = {}
    for row in trials:
        config = frames.configs.get((row["study"], row["id"]), {})
        for name, value in config.items():
            if name in ignored or not changes_result(name):
                continue
            fields.setdefault(name, {}).setdefault(str(value), row["id"])
        if not config and row["status"] == "done":  # from elsewhere: the length is all there is
            fields.setdefault("steps", {}).setdefault(str(row["steps"]), row["id"])
        for name in recorded:
            value = row[name]
            if isinstance(value, str):
                kind = device_kind(value) if name == "device" else value
                fields.setdefault(name, {}).setdefault(kind, row["id"])
    return fields


def changes_result(field: str) -> bool:
    """Whether a field of a configuration (dotted) can change what a trial comes to."""
    section, _, rest = field.partition(".")
    return section not in TOP_LEVEL and rest not in NESTED.get(section, ())


def device_kind(device: str) -> str:
    """Two kinds of GPU differ in rounding, as two seeds do; a GPU and a CPU in more."""
    return device if device in ("cpu", "mps") else "GPU"


def _refuse(name: str, a: str, one: str, b: str, other: str, who: str) -> None:
    short = lambda v: v if len(v) <= 40 else v[:37] + "..."  # noqa: E731
    raise StudyError(
        f"{name}: {who} differ in it ({short(a)} in {one}, {short(b)} in {other}), and it is not "
        f"the factor under test. Run both under the same {name}, or make it a factor of the sweep."
    )
