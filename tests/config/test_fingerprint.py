"""Which configurations are the same trial."""

from __future__ import annotations

from ablate.config.compose import Composer
from ablate.config.fingerprint import fingerprint
from ablate.plan.canonical import resolve


def test_a_field_that_came_later_leaves_older_trials_what_they_are(tmp_path) -> None:
    now = resolve(Composer(tmp_path).compose([]))
    older = {**now, "loss": {k: v for k, v in now["loss"].items() if k != "chunk"}}
    assert fingerprint(older) == fingerprint(now)
    assert fingerprint({**now, "loss": {**now["loss"], "chunk": 64}}) != fingerprint(now)
    assert now["precision"].pop("fused_norms")
    assert fingerprint(now) == fingerprint(older)
    spelled_out = {**now, "precision": {**now["precision"], "fused_norms": False}}
    assert fingerprint(spelled_out) != fingerprint(now)
