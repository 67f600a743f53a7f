"""Limits that SLURM's accounts enforce: what the user may queue, and what may run at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fake_node import all_done, launch, make_study
from slurm_box import Box, in_use

from ablate.config.schema import ClusterConfig
from ablate.launch.slurm.limits import read_limits

pytestmark = pytest.mark.slow  # a cluster of its own, and trials one after the other


@pytest.fixture
def strict(boxes: Callable[..., Box], monkeypatch: pytest.MonkeyPatch) -> Iterator[Box]:
    """The user has the accounts `wide` and `narrow` (four jobs in the queue), and the QOS `few`
    (five in the queue), `slow` (two that run) and `shared` (five of all users).
    """
    box = boxes(extra="AccountingStorageEnforce=associations,limits,qos", nodes=2)
    for words in (
        ("add", "qos", "few", "set", "MaxSubmitJobsPerUser=5"),
        ("add", "qos", "slow", "set", "MaxJobsPerUser=2"),
        ("add", "qos", "shared", "set", "GrpSubmitJobs=5"),
        ("add", "account", "wide,narrow"),
        ("add", "user", "root", "account=wide", "qos=normal,few,slow,shared"),
        ("add", "user", "root", "account=narrow", "qos=normal", "MaxSubmitJobs=4"),
    ):
        done = box.call("sacctmgr", "-i", *words)
        assert done.returncode == 0 or "Nothing new" in done.stdout, done.stdout + done.stderr
    yield from in_use(box, monkeypatch)


@pytest.mark.parametrize(
    ("limit", "read", "queued", "running"),
    [
        ({"account": "wide", "qos": "few"}, 5, 5, 5),
        ({"account": "narrow"}, 4, 4, 4),
        ({"account": "wide", "qos": "shared"}, None, 5, 5),
        ({"account": "wide", "qos": "slow"}, None, 99, 2),
    ],
    ids=["qos", "account", "unread", "running"],
)
def test_a_launch_keeps_to_what_the_accounts_allow_and_ends(
    limit: dict[str, str], read: int | None, queued: int, running: int, strict: Box, tmp_path: Path
) -> None:
    study = make_study(tmp_path / "s", {f"arm{i}": {"pause": 0.05} for i in range(9)})
    found = read_limits(ClusterConfig(name="slurm", **limit))
    assert found is not None
    assert found.free == read
    launch(study, **limit)
    most: list[tuple[int, int]] = []

    def ended() -> bool:
        words = list(strict.active().values())
        most.append((len(words), words.count("RUNNING")))
        return all_done(study)

    strict.until(ended, 200, "for nine trials")
    assert max(n for n, _ in most) <= queued
    assert 1 <= max(n for _, n in most) <= running
    assert [len(t.attempts()) for t in study.trials()] == [1] * 9
