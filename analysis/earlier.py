"""A study as it was at an earlier revision: without the seeds that later ones added."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ablate.analysis.frames import Frames
from ablate.errors import ConfigError, StudyError

__all__ = ["at_revision"]


def at_revision(frames: Frames, number: int) -> Frames:
    """What revision `number` (1: the launch) of the one study held, each trial as it stands today.

    Raises:
        ConfigError: for a revision that there is not.
        StudyError: where the manifest does not tell what the study was then.
    """
    ((study, manifest),) = frames.manifests.items()
    newest, history = int(manifest.get("revision", 1)), list(manifest.get("history") or [{}])
    if not 1 <= number <= newest:
        raise ConfigError("--revision", number, f"study {study} has revisions 1 to {newest}")
    if number == newest:
        return frames
    more = [str(e.get("what")) for e in history[number:] if not _adds_seeds_alone(e)]
    if more or "looks" not in history[number - 1]:
        raise StudyError(
            f"--revision={number}: later revisions of study {study} did more than to add seeds "
            f"({'; '.join(more) or 'by an older ablate'}), and its manifest does not tell what it "
            "was before. The report that was made then is what there is."
        )
    later = set(_seeds(manifest)[history[number - 1]["looks"][-1] :])
    kept = [t for t in manifest["trials"] if t["seed"] not in later]
    pick = lambda frame: frame[~frame["seed"].isin(later)].reset_index(drop=True)  # noqa: E731
    then = {**manifest, "revision": number, "history": history[:number], "trials": kept}
    return replace(
        frames,
        trials=pick(frames.trials),
        curves=pick(frames.curves),
        events=pick(frames.events),
        manifests={study: then},
    )


def _adds_seeds_alone(entry: Mapping[str, Any]) -> bool:
    words = entry.get("overrides") or [""]
    return all(word.lstrip("+").startswith("sweep.seeds=") for word in words)


def _seeds(manifest: Mapping[str, Any]) -> list[int]:
    """Those that every arm has, in the order in which they came."""
    each: dict[str, dict[int, None]] = {}
    for trial in manifest["trials"]:
        each.setdefault(trial["arm"], {})[trial["seed"]] = None
    first, *rest = sorted(each.values(), key=len, reverse=True)
    return [seed for seed in first if all(seed in other for other in rest)]
