"""The frozen rule: whatever is changed about it later is named."""

from __future__ import annotations

import pytest

from ablate.design.rule import decide_hash, rule_changes

RULE = {"metric": "val/bpb", "smallest_effect": 0.005, "alpha": 0.05, "correction": "holm",
        "margin": 0.005, "spending": None}  # fmt: skip
MANIFEST = {"decide": RULE, "decide_hash": decide_hash(RULE)}


def test_the_frozen_rule_is_no_change() -> None:
    assert rule_changes(MANIFEST) == []
    assert rule_changes(MANIFEST, RULE) == []
    assert rule_changes(MANIFEST, {"metric": None, "alpha": 0.05}) == []
    old = {k: v for k, v in RULE.items() if k not in ("margin", "spending")}
    assert rule_changes({"decide": old, "decide_hash": decide_hash(old)}, {"margin": 0.005}) == []


@pytest.mark.parametrize(
    ("field", "value"),
    [("metric", "val/loss"), ("smallest_effect", 0.001), ("alpha", 0.1), ("correction", "dunnett"),
     ("margin", 0.02), ("spending", {"rule": "pocock", "looks": [3, 6]})],
)  # fmt: skip
def test_every_field_that_is_changed_is_named(field, value) -> None:
    (reason,) = rule_changes(MANIFEST, {field: value})
    assert reason.startswith(f"{field} is ")
    edited = {**MANIFEST, "decide": {**RULE, field: value}}
    assert "edited after the launch" in rule_changes(edited)[0]


def test_a_study_without_a_rule_has_no_confirmatory_result() -> None:
    assert rule_changes({"decide": None}) == ["no decision rule was written before the runs"]
