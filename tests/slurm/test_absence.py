"""Where there is no Slurm, a test says why it is skipped; where it must run, it fails."""

from __future__ import annotations

import os

import pytest
import slurm_box

ENDS = {"": pytest.skip.Exception, "1": pytest.fail.Exception}


@pytest.mark.parametrize("asked", sorted(ENDS))
@pytest.mark.parametrize(("user", "missing", "said"), [(1000, [], "root"), (0, ["srun"], "srun")])
def test_an_absence_is_a_skip_only_where_the_tests_may_be_skipped(
    monkeypatch: pytest.MonkeyPatch, asked: str, user: int, missing: list[str], said: str
) -> None:
    installed: list[bool] = []
    monkeypatch.setenv("ABLATE_TEST_INSTALL", asked)
    monkeypatch.setattr(os, "geteuid", lambda: user)
    monkeypatch.setattr(slurm_box, "missing_programs", lambda: missing)
    monkeypatch.setattr(slurm_box, "install", lambda: installed.append(True))
    reason = slurm_box.why_not()
    assert reason is not None
    with pytest.raises(ENDS[asked], match=said):
        slurm_box.give_up(reason)
    assert bool(installed) == (asked == "1" and bool(missing))
