"""The faults of `chaos.py`: which, when and on whom is decided by the seed and by what runs."""

from __future__ import annotations

import contextlib
import math
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slurm_box import Box

from ablate.rundir import ENDED, StudyDir, TrialDir

FULL_SECONDS = 8.0
LAST = 0.9
"""The last fault strikes when so much of all steps is done."""
PATIENCE = 60.0
"""So long a fault waits for its share of the steps: where all nodes are down, nothing goes on."""
TRIES = 30
"""So often a fault that finds nobody to hurt is put off: a node is down for as long as 45 s."""
IDLE = 400.0
"""Where nothing has run and nothing has been in the queue for so long, nothing ever will."""


@dataclass
class Faults:
    box: Box
    study: StudyDir
    rng: random.Random
    say: Callable[[str], None]
    lease: float
    trials: int
    deadline: float = math.inf
    """By `time.monotonic`: no fault strikes later."""
    done: Counter[str] = field(default_factory=Counter)
    later: list[tuple[float, str, Callable[[], None]]] = field(default_factory=list)
    """(when, what, repair): nodes, daemons and processes that come back."""
    hurt: set[str] = field(default_factory=set)
    """Nodes and daemons that are down."""
    at: list[float] = field(default_factory=list)
    """Share of all steps that was done at each fault."""
    looked: float = 0.0
    alive: float = field(default_factory=time.monotonic)
    """When something was last seen running, or in the queue."""

    def plan(self) -> list[str]:
        """At least one of each kind; in proportion to the trials."""
        times = max(1, self.trials // 50)
        rest = ["kill_task"] * 4 * times + ["preempt", "kill_node", "slurmd_alone"] * times
        rest += ["cancel"] * times + ["stop"] * times + ["split"] * max(1, times // 2)
        rest += ["slurmctld", "slurmdbd"] * max(1, times // 2) + ["full_disk"]
        rest += ["kill_pool"] * times
        self.rng.shuffle(rest)
        return rest

    def run(self) -> None:
        """One after the other, spread over the run; repairs come due in between."""
        waiting = [(kind, 0) for kind in self.plan()]
        total = len(waiting)
        self._until(self.study.exists, 300)
        while waiting and not self._hopeless():
            due = LAST * (1 - (len(waiting) - 0.5) / total)
            self._until(lambda due=due: self.progress() >= due, PATIENCE)
            self._until(lambda: self._running() or self._over(), 240)
            if self._hopeless():
                break
            kind, tries = waiting.pop(0)
            if self._over():
                self.say(f"everything ended before {kind} and {len(waiting)} more")
                break
            share = self.progress()
            what = getattr(self, kind)()
            if what:
                self.done[kind] += 1
                self.at.append(share)
                self.say(f"{share:4.0%} {kind}: {what}")
            elif tries < TRIES:
                waiting.insert(min(2, len(waiting)), (kind, tries + 1))
            self._pause(self.rng.uniform(0.5, 2.0))
        if self._hopeless():
            missed = len(waiting)
            why = "the time is up" if self._late() else f"nothing has run for {IDLE:.0f} s"
            self.say(f"{why}, so {missed} faults do not strike")
        while self.later:
            self._pause(1.0)
        self.say("the faults are over, and all is repaired")

    def progress(self) -> float:
        """Share of all steps that is done; what has ended counts as whole."""
        states = [t.state() for t in self.study.trials()]
        done = sum(s.steps if s.status in ENDED else s.step for s in states)
        return done / max(1, sum(s.steps for s in states))

    # ---- the kinds; each returns what it did, or None where there was nobody to hurt

    def kill_task(self) -> str | None:
        """The process of a trial, without warning."""
        found = self._pick()
        if found is None:
            return None
        trial, record = found
        return f"{trial.id} on {record['node']}" if _kill(record["pid"], signal.SIGKILL) else None

    def kill_pool(self) -> str | None:
        """The process that forked a packed trial."""
        for trial, record in self._running():
            parent = _parent(record["pid"])
            if parent and "ablate.launch.forks" in _command(parent):
                _kill(parent, signal.SIGKILL)
                return f"the parent of {trial.id} on {record['node']}"
        return None

    def kill_node(self) -> str | None:
        """slurmd, its step daemons and its tasks; back before or after SLURM has noticed."""
        node = self._node()
        if node is None:
            return None
        self.box.kill_node(node)
        self._repair(self.rng.choice((4.0, 40.0)), node, lambda: self.box.start_node(node))
        return node

    def slurmd_alone(self) -> str | None:
        """Its tasks go on, and SLURM starts them elsewhere too."""
        node = self._node()
        if node is None:
            return None
        self.box.kill_node(node, daemon_only=True)
        self._repair(self._long(45.0), node, lambda: self.box.start_node(node))
        return node

    def split(self) -> str | None:
        """slurmd alone, and a process of its node stops until another copy has its trial."""
        found = self._pick(lambda r: r["node"] not in self.hurt)
        if found is None or len(self.hurt) > 2:
            return None
        trial, record = found
        if not _kill(record["pid"], signal.SIGSTOP):
            return None
        node = record["node"]
        self.box.kill_node(node, daemon_only=True)
        self._repair(self._long(70.0), node, lambda: self.box.start_node(node))
        self._wake(record["pid"], self._long(65.0))
        return f"{trial.id} stopped on {node}, whose slurmd is dead"

    def stop(self) -> str | None:
        """A process stops for longer than its lease, and wakes."""
        found = self._pick()
        if found is None:
            return None
        trial, record = found
        if not _kill(record["pid"], signal.SIGSTOP):
            return None
        self._wake(record["pid"], self.lease + self.rng.uniform(3.0, 8.0))
        return f"{trial.id} on {record['node']}"

    def slurmctld(self) -> str | None:
        return self._daemon("slurmctld", self.rng.uniform(2.0, 10.0))

    def slurmdbd(self) -> str | None:
        return self._daemon("slurmdbd", self.rng.uniform(5.0, 20.0))

    def preempt(self) -> str | None:
        """A job of a higher partition takes a whole node."""
        node = self._node(hurt=False)
        if node is None:
            return None
        words = ("sbatch", "-p", "high", "-w", node, "--exclusive", "-t", "5", "-o", "/dev/null")
        done = self.box.call(*words, "--wrap", f"sleep {self.rng.randint(1, 4)}", cwd="/")
        return node if done.returncode == 0 else None

    def cancel(self) -> str | None:
        """A few trials, running or waiting, by `ablate cancel`."""
        open_ = [t.id for t in self.study.trials() if t.state().status not in ENDED]
        if not open_:
            return None
        chosen = self.rng.sample(open_, min(len(open_), 3 if self.trials >= 60 else 1))
        done = self.box.ablate("cancel", "chaos", *chosen, cwd=self.study.path.parents[1])
        said = (done.stdout + done.stderr).strip().splitlines()
        return f"{len(chosen)} trials ({said[0] if said else done.returncode})"

    def full_disk(self) -> str | None:
        """The disk of the runs is full for a while."""
        ballast = self.study.path.parent / "ballast"
        with contextlib.suppress(OSError), open(ballast, "wb", buffering=0) as file:
            while True:
                file.write(bytes(1 << 20))
        with contextlib.suppress(OSError), open(ballast, "ab", buffering=0) as file:
            while True:
                file.write(bytes(4096))
        self._repair(FULL_SECONDS, "disk", lambda: ballast.unlink(missing_ok=True))
        return f"for {FULL_SECONDS:.0f} s"

    def _long(self, seconds: float) -> float:
        """Long enough for SLURM to notice (about 30 s); less of it in a short run."""
        return seconds if self.trials >= 60 else min(seconds, 40.0)

    # ---- whom

    def _running(self) -> list[tuple[TrialDir, dict[str, Any]]]:
        """Trials whose newest process lives and has written a row."""
        found = []
        for trial in self.study.trials():
            with contextlib.suppress(Exception):
                if trial.state().status != "running":
                    continue
                attempt = trial.newest_attempt()
                record = attempt.record() if attempt else {}
                if attempt and record.get("node") and _lives(record["pid"]) and attempt.has_begun():
                    found.append((trial, record))
        return found

    def _pick(
        self, fits: Callable[[dict[str, Any]], bool] = lambda record: True
    ) -> tuple[TrialDir, dict[str, Any]] | None:
        found = [(t, r) for t, r in self._running() if fits(r)]
        return self.rng.choice(found) if found else None

    def _node(self, *, hurt: bool = True) -> str | None:
        """A node on which trials run; at most two are down at once."""
        nodes = sorted({r["node"] for _, r in self._running()} - self.hurt)
        return self.rng.choice(nodes) if nodes and (not hurt or len(self.hurt) < 2) else None

    def _over(self) -> bool:
        return all(t.state().status in ENDED for t in self.study.trials())

    def _late(self) -> bool:
        return time.monotonic() > self.deadline

    def _hopeless(self) -> bool:
        """Whether it is over before its end: nothing runs and nothing waits, or the time is up."""
        return self._late() or time.monotonic() - self.alive > IDLE

    # ---- repairs

    def _daemon(self, name: str, seconds: float) -> str | None:
        if name in self.hurt:
            return None
        self.box.kill_daemon(name)
        self._repair(seconds, name, lambda: self.box.start_daemon(name))
        return f"for {seconds:.0f} s"

    def _wake(self, pid: int, seconds: float) -> None:
        self._repair(seconds, f"process {pid}", lambda: _kill(pid, signal.SIGCONT) and None)

    def _repair(self, seconds: float, what: str, action: Callable[[], None]) -> None:
        self.hurt.add(what)
        self.later.append((time.monotonic() + seconds, what, action))

    def _pause(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while True:
            for entry in [e for e in self.later if e[0] <= time.monotonic()]:
                self.later.remove(entry)
                entry[2]()
                self.hurt.discard(entry[1])
                self.say(f"    {entry[1]} is back")
            if time.monotonic() >= until:
                return
            if time.monotonic() - self.looked > 10.0:
                self.looked = time.monotonic()
                self.box.administer()
                if (self.study.exists() and self._running()) or self.box.in_queue():
                    self.alive = time.monotonic()
            time.sleep(0.2)

    def _until(self, condition: Callable[[], Any], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not condition() and time.monotonic() < deadline and not self._hopeless():
            self._pause(0.3 if self.trials < 60 else 1.0)


def _kill(pid: int, number: int) -> bool:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZTt"
    except OSError:
        return False


def _parent(pid: int) -> int | None:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return None


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""
