"""The decision rule as the manifest freezes it: one hash, and what a later wish changes about it.

The report asks `rule_changes` before it judges: whatever it returns makes the result exploratory.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

__all__ = ["decide_hash", "rule_changes"]


def decide_hash(decide: Mapping[str, Any]) -> str:
    """SHA-256 of the rule as JSON with sorted keys and no spaces."""
    text = json.dumps(decide, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def rule_changes(manifest: Mapping[str, Any], wanted: Mapping[str, Any] | None = None) -> list[str]:
    """Why a judgement by `wanted` is exploratory, a reason each; empty where it is by the rule.

    Args:
        manifest: of the study; its `decide` and `decide_hash` are what the launch froze.
        wanted: fields of the rule that the judgement uses instead; None or a missing field keeps
            the frozen one.
    """
    frozen = manifest.get("decide")
    if not frozen:
        return ["no decision rule was written before the runs"]
    reasons = []
    stored = manifest.get("decide_hash")
    if stored is not None and stored != decide_hash(frozen):
        reasons.append("the decision rule in the manifest was edited after the launch")
    for field, value in (wanted or {}).items():
        before = frozen.get(field)
        if field == "margin" and before is None:
            before = frozen.get("smallest_effect")
        if value is not None and value != before:
            reasons.append(f"{field} is {value}, and was {before} before the runs")
    return reasons
