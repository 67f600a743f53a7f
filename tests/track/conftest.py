from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "launch"))  # fake_training

from stand_in import Server
from tracked import KEY


@pytest.fixture(autouse=True)
def _nobody_is_logged_in(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("WANDB_SILENT", "WANDB_ERROR_REPORTING"):
        monkeypatch.setenv(name, "true" if name == "WANDB_SILENT" else "false")
    yield
    if "wandb" in sys.modules:  # its client would remember this server in the next test
        sys.modules["wandb"].teardown()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A stand-in for wandb's, to which the key belongs."""
    made = Server()
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    monkeypatch.setenv("WANDB_BASE_URL", made.url)
    yield made
    made.shutdown()
    made.server_close()
