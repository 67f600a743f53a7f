"""`ablate sync --workspace`: one saved view of the study, saved over itself."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
from stand_in import Server
from tracked import make_study, train

from ablate.cli import main


def test_the_view_compares_the_arms_and_is_saved_over_itself(
    tmp_path: Path, server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    study = train(make_study(tmp_path, seeds=2))
    assert main(["sync", str(study.path), "--workspace", "--json"]) == 0
    first = json.loads(capsys.readouterr().out)["workspace"]
    assert main(["sync", str(study.path), "--workspace", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["workspace"] == first
    (view,) = server.views.values()
    assert view["displayName"] == "ablate: hello"
    section = json.loads(view["spec"])["section"]
    (runs,) = section["runSets"]
    assert runs["filters"]["filters"][0]["value"] == "hello", "the runs of this study alone"
    assert runs["grouping"] == [{"section": "config", "name": "arm.value"}]
    shown = runs["runFeed"]["columnOrder"]
    for column in ("config:arm", "config:seed", "config:factor.position", "summary:verdict"):
        assert column in shown
    panels = [p for s in section["panelBankConfig"]["sections"] for p in s["panels"]]
    plots = [p["config"] for p in panels if p["viewType"] == "Run History Line Plot"]
    assert {p["xAxis"] for p in plots} == {"tokens"}
    assert plots[0]["metrics"] == ["val/bpb"], "what decides comes first"
    assert section["settings"]["xAxis"] == "tokens"
    assert not server.unknown


def test_without_the_package_it_says_how_to_get_it_and_sends_nothing(
    tmp_path: Path,
    server: Server,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    study = train(make_study(tmp_path))
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda n, *a: None if n == "wandb_workspaces" else found(n, *a)
    )
    assert main(["sync", str(study.path), "--workspace"]) == 2
    assert "pip install 'ablate[workspace]'" in capsys.readouterr().err
    assert not server.runs


def test_a_view_needs_a_server(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = train(make_study(tmp_path))
    assert main(["sync", str(study.path), "--workspace", "--offline"]) == 2
    assert "--offline" in capsys.readouterr().err
