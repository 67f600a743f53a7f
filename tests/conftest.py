"""What every test stands on."""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Drawn examples take as long as a busy machine lets them, and are the same in every run: what fails
# on one machine fails on the next. `make test-full` draws new ones.
settings.register_profile(
    "same", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("new", settings.get_profile("same"), derandomize=False)
settings.load_profile(os.environ.get("ABLATE_TEST_EXAMPLES", "same"))

# Processes of tests share the cores. Where each spins with as many threads as there are cores, all
# wait for all; so one thread each, unless a test asks for more.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Processes that tests start find our modules compiled, also where the shell forbids that.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell gives this to what it starts in the background, and children inherit it: then no
    # test of Ctrl-C could interrupt anything.
    signal.signal(signal.SIGINT, signal.default_int_handler)


OTHER_CLUSTERS = "slurm, other settings"
LONG = (
    "slurm/test_chaos.py", "slurm", "track/test_sync.py", "parallel/test_equality.py",
    "hydra/test_launchers.py", "train/test_responses.py", "parallel/test_sharded.py",
    "cli/test_train.py", OTHER_CLUSTERS, "train/test_resume.py", "config/test_compose.py",
    "launch/test_stacked_launch.py", "launch/test_pains_launch.py", "model/test_decoding.py",
    "analysis/test_report.py", "track/test_foreign.py", "train/test_stacked.py",
    "launch/test_local.py", "contract/test_model_options.py", "analysis/test_page.py",
)  # fmt: skip
"""Groups that take longest, which begin first: what begins last should be short, or the other test
processes wait for it. Tests that need SLURM mostly wait, for its own intervals, so those of other
settings run beside tests that compute, not beside each other.
"""
ROOT = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With several test processes (`--dist loadgroup --no-loadscope-reorder`): a group stays in
    one of them.
    """
    places = {name: number for number, name in enumerate(LONG)}
    items.sort(key=lambda item: places.get(_group(item), len(LONG)))
    if config.pluginmanager.hasplugin("xdist"):
        for item in items:
            item.add_marker(pytest.mark.xdist_group(_group(item)))


def _group(item: pytest.Item) -> str:
    """A file, or all that need the same SLURM cluster, which is brought up once. (Chaos brings up
    one of its own.)
    """
    fixtures = set(getattr(item, "fixturenames", ()))
    if "box" in fixtures:
        return "slurm"
    return OTHER_CLUSTERS if "boxes" in fixtures else item.path.relative_to(ROOT).as_posix()


class _Herald:
    """Shows a failure when it happens: of a run that is cut short, that is all there is to read."""

    def __init__(self, plugins: pytest.PytestPluginManager) -> None:
        self._plugins = plugins

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        terminal = self._plugins.get_plugin("terminalreporter")
        if report.failed and terminal is not None:
            terminal.write_sep("!", f"{report.nodeid} ({report.when})")
            terminal.write_line(report.longreprtext)


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # with xdist, of the process that tells
        config.pluginmanager.register(_Herald(config.pluginmanager), "herald")


@pytest.hookimpl(tryfirst=True)  # before the fixtures
def pytest_runtest_setup(item: pytest.Item) -> None:
    # Which tests a process has run before differs from run to run; what is drawn should not.
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)
    if item.get_closest_marker("gpu") is not None:
        import torch

        if not torch.cuda.is_available():
            pytest.skip("needs a GPU (make test-gpu)")


@pytest.fixture(autouse=True)
def _logging_of_its_own() -> Iterator[None]:
    """What a test sets up of Python's logging ends with it.

    A task of a job configures logging for its process. Run within a test's, that handler would
    hold the test's captured standard error, and fail in every later test that logs.
    """
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    yield
    for handler in root.handlers[:]:
        if handler not in before:
            root.removeHandler(handler)
    root.setLevel(level)


@pytest.fixture
def warm_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    """See `warm.py`: for tests that launch in this process."""
    from tests.warm import SUBPROCESS

    monkeypatch.setattr("ablate.launch.pool.subprocess", SUBPROCESS)
