"""A real Slurm on this machine for the time of a test session: see `box/up.sh`.

box.run("squeue", "-h")          any command against this cluster
box.kill_node("n3")              its slurmd, step daemons and tasks; daemon_only=True: slurmd alone
box.kill_daemon("slurmctld")     and start_daemon
box.history(job)                 [(state, exit code), ...] of every incarnation, from sacct -D
box.until(lambda: ..., 30)       polls; fails with the queue and the last lines of the logs
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest

from ablate.rundir.process import machine, process_started

SCRIPTS = Path(__file__).parent / "box"
ROOT = Path(__file__).parents[2]
PACKAGES = [
    "slurmctld",
    "slurmd",
    "slurmdbd",
    "slurm-client",
    "munge",
    "mariadb-server-core",
    "mariadb-client-core",
]
PORTS_EACH = 200
FIRST_PORT, LAST_PORT = 10000, 20000
"""Above them are the ports at which the processes of one trial meet (`ablate.launch.ranks`). Those
follow from the number of the job, so clusters side by side begin to count at different numbers.
"""
TELLING = ("cmdline", "environ")
DATABASE_PROGRAMS = ("slurmdbd", "mariadbd", "mariadb-install-db")


def in_use(box: Box, monkeypatch: pytest.MonkeyPatch) -> Iterator[Box]:
    """Hands a cluster to one test and cleans up behind it; for fixtures of other variants."""
    for name, value in box.environment.items():
        if name in ("SLURM_CONF", "PYTHONPATH"):
            monkeypatch.setenv(name, value)
    try:
        yield box
    finally:
        box.clear()


def started(**knobs: Any) -> Box:
    """A new cluster; on a busy machine a daemon may not come up in time, so a second try is made.

    Raises:
        RuntimeError: with what its scripts said.
    """
    try:
        return Box(**knobs).up()
    except RuntimeError:
        return Box(**knobs).up()


def missing_programs() -> list[str]:
    needed = ("slurmctld", "slurmd", "sbatch", "munged", "unshare", *DATABASE_PROGRAMS)
    return [name for name in needed if shutil.which(name) is None]


def must_run() -> bool:
    """Whether the tests of a cluster are to fail, not to be skipped, where there can be none."""
    return os.environ.get("ABLATE_TEST_INSTALL") == "1"


def why_not() -> str | None:
    """Why no cluster can be brought up here; installs Slurm first where that is asked for."""
    if os.geteuid() != 0:
        return "a Slurm cluster on this machine needs root"
    if missing_programs() and must_run():
        install()
    if missing := missing_programs():
        return f"there is no Slurm here ({', '.join(missing)} not found)"
    return None


def give_up(reason: str) -> NoReturn:
    """Skips the test, or fails it where it must run."""
    if must_run():
        pytest.fail(f"ABLATE_TEST_INSTALL=1, but {reason}")
    pytest.skip(f"{reason}; ABLATE_TEST_INSTALL=1 installs Slurm, and makes this an error")


def install() -> None:
    quiet: dict[str, Any] = {
        "stdout": subprocess.DEVNULL,
        "env": {**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
    }
    subprocess.run(["apt-get", "update", "-qq"], check=True, **quiet)
    lock = ["-o", "DPkg::Lock::Timeout=300"]  # several test processes may install at once
    command = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *lock, *PACKAGES]
    subprocess.run(command, check=True, **quiet)


class Box:
    """A cluster with a folder and ports of its own; several may run side by side."""

    def __init__(self, **knobs: Any) -> None:
        self.path, self.port = _claim()
        values = {"DIR": self.path, "PORT": self.port, "FIRST_JOBID": self.port}
        values |= {k.upper(): v for k, v in knobs.items()}
        self._knobs = {f"SLURMBOX_{key}": str(value) for key, value in values.items()}
        self._guard: subprocess.Popen[bytes] | None = None

    def up(self) -> Box:
        # A test run that is killed must not leave a cluster behind.
        watch = 'while kill -0 "$0" 2>/dev/null; do sleep 1; done; "$1" --wipe; rm -r "$2"'
        self._guard = subprocess.Popen(
            ["bash", "-c", watch, str(os.getpid()), str(SCRIPTS / "down.sh"), str(self._claimed())],
            env={**os.environ, **self._knobs},
            start_new_session=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        done = self._script("up.sh", timeout=180)
        if done.returncode:
            self.down()
            raise RuntimeError(f"the cluster did not start:\n{done.stdout}{done.stderr}")
        return self

    def down(self) -> None:
        if self._guard is not None:
            os.killpg(self._guard.pid, signal.SIGKILL)
            self._guard.wait()
        self._script("down.sh", "--wipe", timeout=120)
        shutil.rmtree(self._claimed())

    def _claimed(self) -> Path:
        return self.path.with_name(f"{self.path.name}.claim")

    # ---- commands

    @property
    def environment(self) -> dict[str, str]:
        """For processes that are to see this cluster and this checkout."""
        outside = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "SBATCH_"))}
        fakes = (ROOT, ROOT / "tests/slurm", ROOT / "tests/launch")
        path = os.pathsep.join(map(str, fakes))
        return {
            **outside,
            "SLURM_CONF": str(self.path / "slurm.conf"),
            "PYTHONPATH": path,
            "OMP_NUM_THREADS": "1",
        }

    def run(self, *words: str, timeout: float = 60, **more: Any) -> str:
        """Standard output of a command, which must succeed."""
        done = self.call(*words, timeout=timeout, **more)
        assert done.returncode == 0, f"{words} -> {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def call(
        self, *words: str, timeout: float = 60, **more: Any
    ) -> subprocess.CompletedProcess[str]:
        options = {"env": self.environment, "capture_output": True, "text": True, **more}
        return subprocess.run(words, timeout=timeout, check=False, **options)

    def ablate(
        self, *words: str, cwd: Path, timeout: float = 120, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """`ablate WORDS` in a process of its own."""
        env = {**self.environment, **environment}
        return self.call(sys.executable, "-m", "ablate", *words, cwd=cwd, timeout=timeout, env=env)

    def queue(self) -> dict[str, str]:
        """Job id (of an array: 12_3) -> state, of what squeue still lists."""
        lines = self.run("squeue", "-h", "-r", "-t", "all", "-o", "%i %T").splitlines()
        return dict(line.split() for line in lines)

    def active(self) -> dict[str, str]:
        """The same without what has ended."""
        lines = self.run("squeue", "-h", "-r", "-o", "%i %T").splitlines()
        return dict(line.split() for line in lines)

    def in_queue(self) -> bool:
        """Whether anything waits or runs; a controller that is down counts as a yes."""
        try:
            done = self.call("squeue", "-h", "-o", "%i", timeout=30)
        except subprocess.TimeoutExpired:
            return True
        return done.returncode != 0 or bool(done.stdout.strip())

    def history(self, job: str) -> list[tuple[str, str]]:
        """(state, exit code) of every incarnation of a job, from sacct."""
        words = ("sacct", "-D", "-n", "-X", "-P", "-j", job, "-o", "State,ExitCode")
        return [
            (row[0], row[1]) for line in self.run(*words).splitlines() if (row := line.split("|"))
        ]

    # ---- faults

    def kill_node(self, name: str, *, daemon_only: bool = False) -> None:
        done = self._script("kill_node.sh", name, *(["--daemon-only"] * daemon_only))
        assert done.returncode == 0, done.stderr

    def start_node(self, name: str) -> None:
        subprocess.run([self.path / "start_node.sh", name], check=True, timeout=60)

    def kill_daemon(self, name: str) -> None:
        os.kill(int((self.path / "pids" / f"{name}.pid").read_text()), signal.SIGKILL)

    def start_daemon(self, name: str) -> None:
        subprocess.run([self.path / "start_daemon.sh", name], check=True, timeout=60)

    def administer(self) -> None:
        """A node that SLURM has drained for its own confusion waits for its administrator."""
        out = self.call("sinfo", "-h", "-N", "-p", "main", "-t", "drain", "-o", "%N %E").stdout
        for name, _, reason in (line.partition(" ") for line in out.splitlines()):
            if "Duplicate jobid" in reason:
                self.call("scontrol", "update", f"nodename={name}", "state=resume")

    def clear(self) -> None:
        """Cancels everything and brings every node back, so that the next test starts clean."""
        self.call("scancel", "-u", "root", "--state=PENDING")
        self.call("scancel", "-u", "root")
        self.until(lambda: not self.active(), 60)
        names = self.run("sinfo", "-h", "-N", "-p", "main", "-o", "%N").split()
        for name in names:
            if not lives(int((self.path / "pids" / f"slurmd.{name}.pid").read_text())):
                self.start_node(name)
        self.until(lambda: self._whole(len(names)), 60)

    def _whole(self, nodes: int) -> bool:
        lines = self.run("sinfo", "-h", "-N", "-p", "main", "-o", "%N %T").splitlines()
        states = dict(line.split() for line in lines)
        for name, state in states.items():
            if state.startswith(("down", "drain")):
                self.call("scontrol", "update", f"nodename={name}", "state=resume")
        answer = all(self._answers(self.port + 101 + number) for number in range(len(states)))
        return answer and list(states.values()) == ["idle"] * nodes

    @staticmethod
    def _answers(port: int) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    # ---- waiting

    def until(self, condition: Callable[[], Any], seconds: float, what: str = "") -> Any:
        """What `condition` returns once it is true; fails after so many seconds."""
        deadline = time.monotonic() + seconds
        while True:
            found = condition()
            if found:
                return found
            if time.monotonic() > deadline:
                pytest.fail(f"waited {seconds} s {what}\n{self.story()}")
            time.sleep(0.2)

    def story(self) -> str:
        """The queue, the nodes and the controller's last lines, for messages."""
        said = [self.call(*w).stdout for w in (("squeue", "-a"), ("sinfo", "-N", "-l"))]
        log = self.path / "log" / "slurmctld.log"
        tail = log.read_text(errors="replace").splitlines()[-30:] if log.exists() else []
        return "\n".join([*said, *tail])

    def _script(
        self, name: str, *words: str, timeout: float = 60
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", str(SCRIPTS / name), *words],
            env={**os.environ, **self._knobs},
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )


def _claim() -> tuple[Path, int]:
    """A folder (of a short path: sockets lie in it) and a range of ports that nobody else took."""
    remove_abandoned()
    for _ in range(1000):
        port = random.randrange(FIRST_PORT, LAST_PORT, PORTS_EACH)
        path = Path(tempfile.gettempdir()) / f"slurmbox-{port}"
        try:
            path.with_name(f"{path.name}.claim").mkdir()
        except FileExistsError:
            continue
        (path.with_name(f"{path.name}.claim") / "owner").write_text(json.dumps(_me()))
        if not path.exists() and all(_is_free(port + n) for n in (1, 2, 3, *range(101, 109))):
            return path, port
        shutil.rmtree(path.with_name(f"{path.name}.claim"))
    raise RuntimeError("no free ports for a cluster")


def _me() -> list[str | int | None]:
    return [machine(), os.getpid(), process_started(os.getpid())]


def remove_abandoned() -> None:
    """Clusters of test processes that were killed together with what watches them: their daemons,
    their folders and their claims. Those of other containers are left alone.
    """
    for claim in Path(tempfile.gettempdir()).glob("slurmbox-*.claim"):
        try:
            where, pid, started = json.loads((claim / "owner").read_text())
        except (OSError, ValueError):
            continue  # just being made
        if where != machine() or process_started(pid) == started:
            continue
        path = claim.with_suffix("")
        for file in path.glob("pids/*.pid"):
            with contextlib.suppress(OSError, ValueError):
                daemon = int(file.read_text())
                told = [Path(f"/proc/{daemon}/{what}").read_bytes() for what in TELLING]
                if any(os.fsencode(f"{path}/") in one for one in told):  # no other of its number
                    os.kill(daemon, signal.SIGKILL)
        shutil.rmtree(path, ignore_errors=True)
        shutil.rmtree(claim, ignore_errors=True)


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def lives(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
