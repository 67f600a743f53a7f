"""Two hundred small trials on a real Slurm cluster that is being taken apart meanwhile.

    python -m tests.slurm.chaos --trials 200 --seed 7

The same trials run undisturbed on this machine first. Then a seeded script kills processes, nodes,
slurmd alone, slurmctld, slurmdbd and the launching client, preempts, cancels, stops processes for
longer than their lease and lets them wake, and fills the disk. In the end every trial must be done
(the cancelled ones after one `ablate retry`), none lost, none twice, and every curve equal to its
undisturbed one, bit for bit. Prints a table; exit code 1 for any violation.

Needs root, Slurm and mount (runs_dir is a small tmpfs, so that its disk can be full).
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "cli"))

import pytest
from chaos_faults import Faults
from chaos_verdict import Verdict, judge
from slurm_box import Box, started, why_not
from user_code import write_texts

from ablate.rundir import ENDED, StudyDir

LEASE_SECONDS = 15.0
LIMITS = {60: 460.0, 1000: 5000.0}
"""Fewer trials than this: seconds that the whole may take. Then it is judged as it stands."""
SHARE_OF_FAULTS = 0.68
"""So much of the limit may be over when the last fault strikes."""
IDLE = 3 * LEASE_SECONDS + 60
"""Where SLURM has forgotten everything, the client waits for three leases and submits it again."""
STEPS, STEPS_OF_FEW = 40, 160
"""Of a trial, and where there are fewer than 60: all faults are to come while they run."""
SEEDS_OF_ARM = 20
ARMS = ("rope", "post", "alibi", "rms", "swiglu", "qk", "undropped", "relu", "narrow")
SWEEP = """\
# @package _global_
sweep:
  question: Does everything survive?
  baseline: [model=gpt2, size=tiny]
  factors:
    arm:
{arms}
  seeds: {seeds}
  budget: {{steps: {steps}}}
"""
LEVELS = {
    "rope": "[position=rope, resources=packed]",
    "alibi": "[position=alibi, resources=packed]",
    "rms": "[norm=rms, resources=packed]",
    "swiglu": "[activation=swiglu, resources=packed]",
    "post": "[placement=post, resources=alone]",
    "qk": "['qk_norm=\"on\"', resources=packed]",
    "undropped": "[dropout=none, resources=packed]",
    "relu": "[activation=relu, resources=packed]",
    "narrow": "[model.mlp_ratio=2, resources=packed]",
}
RESOURCES = """\
# @package _global_
cluster: {{cpus: 1, memory: 900M, time: 2h, pack: {pack}}}
"""
OVERRIDES = (
    "sweep=chaos", "resources=packed", "data.path=train.txt", "data.validation_path=held_out.txt",
    "data.cache_dir=cache", "train.batch_size=2", "train.sequence_length=16",
    "train.validation_tokens=128",
    "train.checkpoint_every=5", "train.keep_checkpoints=2",
)  # fmt: skip
CLUSTER = ("cluster=slurm", "cluster.partition=low", "cluster.max_retries=12", "cluster.grace=30")


class Chaos:
    """One run: a folder, a full-able disk, a cluster, a client, faults, and the verdict."""

    def __init__(
        self, trials: int, seed: int, folder: Path, undisturbed: Path | None = None
    ) -> None:
        self.trials, self.seed, self.folder = trials, seed, folder
        arms = 1 + min(len(ARMS), max(1, trials // SEEDS_OF_ARM - 1) if trials >= 60 else 3)
        self.arms, self.seeds = arms, trials // arms
        self.steps = STEPS if trials >= 60 else STEPS_OF_FEW
        self.study = StudyDir(folder / "runs" / "chaos")
        self.known = undisturbed
        self.undisturbed = StudyDir(undisturbed or folder / "undisturbed" / "chaos")
        self.began = time.monotonic()
        self.limit = next(seconds for most, seconds in LIMITS.items() if trials < most)
        os.environ["ABLATE_LEASE_SECONDS"] = str(LEASE_SECONDS)

    def say(self, text: str) -> None:
        print(f"[{time.monotonic() - self.began:7.1f} s] {text}", flush=True)

    def left(self, most: float) -> float:
        """Seconds that something may still take, of the `most` that it is given."""
        return max(1.0, min(most, self.began + self.limit - time.monotonic()))

    def write_folder(self) -> None:
        chosen = ARMS[: self.arms - 1]
        lines = "".join(f"      - {{{name}: {LEVELS[name]}}}\n" for name in chosen)
        (self.folder / "sweeps").mkdir(parents=True)
        text = SWEEP.format(arms=lines.rstrip("\n"), seeds=self.seeds, steps=self.steps)
        (self.folder / "sweeps/chaos.yaml").write_text(text)
        (self.folder / "conf/resources").mkdir(parents=True)
        for name, pack in (("alone", 1), ("packed", 8 if self.trials >= 60 else 3)):
            (self.folder / f"conf/resources/{name}.yaml").write_text(RESOURCES.format(pack=pack))
        write_texts(self.folder)

    def run_undisturbed(self, box: Box) -> None:
        if self.known:
            return
        words = ("launch", *OVERRIDES, "runs_dir=undisturbed")
        done = box.ablate(*words, cwd=self.folder, timeout=self.left(3600))
        assert done.returncode == 0, done.stdout + done.stderr
        self.say(f"{len(self.undisturbed.trials())} trials run undisturbed")

    def client(self, box: Box) -> subprocess.Popen[bytes]:
        """`ablate train -m` with our sweeper and our launcher, in a session of its own."""
        words = (
            "hydra/sweeper=ablate",
            "hydra/launcher=slurm",
            *OVERRIDES,
            *CLUSTER,
        )
        with open(self.folder / "client.log", "ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "ablate", "train", "-m", *words],
                cwd=self.folder,
                env={**box.environment, "ABLATE_LEASE_SECONDS": str(LEASE_SECONDS)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                # Under nohup the signal is ignored, and every child would ignore it too.
                preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),
            )

    def launch_and_kill(self, box: Box, clients: list[subprocess.Popen[bytes]]) -> None:
        """The first client dies by SIGKILL soon after the first array is out, the second loses
        its connection while it waits, the third stays. Meanwhile the faults have begun.
        """
        rng = random.Random(self.seed + 1)
        for number, how in enumerate((signal.SIGKILL, signal.SIGHUP, None)):
            client = self.client(box)
            clients.append(client)
            box.until(functools.partial(self.submitted, client), self.left(300), "to submit")
            assert self.submitted(), (self.folder / "client.log").read_text()
            if how is None:
                self.say("client 3 waits")
                break
            time.sleep(rng.uniform(0.0, 1.0) if number == 0 else rng.uniform(5.0, 10.0))
            with contextlib.suppress(ProcessLookupError):
                os.killpg(client.pid, how)
            client.wait(60)
            self.say(f"client {number + 1} killed by {how.name}")

    def submitted(self, client: subprocess.Popen[bytes] | None = None) -> bool:
        """Whether an array is out, or `client` has ended."""
        ended = client is not None and client.poll() is not None
        return ended or any(self.study.path.glob("submissions/*.json"))

    def run(self) -> Verdict:
        self.write_folder()
        rng = random.Random(self.seed)
        box = started(slurmd_timeout=10, cpus=1, nodes=4)
        before = os.environ.get("SLURM_CONF")
        os.environ["SLURM_CONF"] = box.environment["SLURM_CONF"]
        clients: list[subprocess.Popen[bytes]] = []
        try:
            self.run_undisturbed(box)
            began = time.monotonic()
            latest = self.began + SHARE_OF_FAULTS * self.limit
            faults = Faults(box, self.study, rng, self.say, LEASE_SECONDS, self.trials, latest)
            troubles = self.disturb(box, faults, clients)
            self.wait_for_end(box, "the trials that were not cancelled")
            cancelled = [t.id for t in self.study.trials() if t.state().status == "cancelled"]
            self.say(f"{len(cancelled)} trials are cancelled; ablate retry")
            self.retry(box)
            self.wait_for_end(box, "everything", ended=("done",))
            verdict = judge(self.study, self.undisturbed, self.steps, cancelled)
            verdict.violations += troubles
            code = self.exit_code(clients[-1])
            verdict.note("exit code of the client that waited to the end", code)
            if code is None:
                verdict.violations.append("the client waits although everything is over")
            verdict.faults = faults.done
            verdict.missed = sorted(set(faults.plan()) - set(faults.done))
            if len(faults.at) > 1:
                shares = [f"{share:.0%}" for share in statistics.quantiles(faults.at, n=4)]
                verdict.note("a quarter, a half, three quarters of the faults came by", shares)
            verdict.note("seconds of the disturbed run", round(time.monotonic() - began))
            return verdict
        finally:
            for client in clients:
                if client.poll() is None:
                    os.killpg(client.pid, signal.SIGKILL)
                    client.wait()
            box.down()
            if before is None:
                del os.environ["SLURM_CONF"]
            else:
                os.environ["SLURM_CONF"] = before

    def disturb(
        self, box: Box, faults: Faults, clients: list[subprocess.Popen[bytes]]
    ) -> list[str]:
        """The faults, and meanwhile the clients; what went wrong with either itself."""
        troubles = []
        with ThreadPoolExecutor(1) as pool:
            launching = pool.submit(self.launch_and_kill, box, clients)
            for action in (faults.run, launching.result):
                try:
                    action()
                except (Exception, pytest.fail.Exception) as error:
                    troubles.append(f"{type(error).__name__}: {error}")
                    self.say(troubles[-1])
        return troubles

    def exit_code(self, client: subprocess.Popen[bytes]) -> int | None:
        """None where it does not end."""
        try:
            return client.wait(self.left(120))
        except subprocess.TimeoutExpired:
            return None

    def retry(self, box: Box) -> None:
        try:
            done = box.ablate("retry", "chaos", cwd=self.folder, timeout=self.left(300))
        except subprocess.TimeoutExpired:
            self.say("ablate retry does not end")
            return
        self.say(f"ablate retry: {done.returncode}: {(done.stdout + done.stderr).strip()[-200:]}")

    def wait_for_end(self, box: Box, what: str, ended: Sequence[str] = ENDED) -> None:
        """Until all have ended; gives up where nobody runs anything any more."""
        idle, told = None, 0.0
        while self.left(self.limit) > 30:  # for the verdict, and to take the cluster down
            box.administer()
            statuses = [t.live_state().status for t in self.study.trials()]
            if all(s in ended for s in statuses):
                return
            idle = None if box.in_queue() else (idle or time.monotonic())
            if idle and time.monotonic() - idle > IDLE:
                self.say(f"nothing runs any more, and {what} have not all ended")
                return
            if time.monotonic() - told > 30:
                told = time.monotonic()
                counts = {s: statuses.count(s) for s in sorted(set(statuses))}
                self.say(f"{counts}{', nothing in the queue' if idle else ''}")
            time.sleep(2.0)
        self.say(f"{what} did not end")


@contextlib.contextmanager
def small_disk(folder: Path, megabytes: int) -> Iterator[None]:
    """A tmpfs for the runs, there before the cluster, whose nodes have mounts of their own."""
    runs = folder / "runs"
    runs.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={megabytes}M", "ablate-chaos", str(runs)],
                   check=True)  # fmt: skip
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(runs)], check=False)


def run_chaos(
    trials: int, seed: int, keep: bool = False, undisturbed: Path | None = None
) -> Verdict:
    folder = Path(tempfile.mkdtemp(prefix="ablate-chaos-"))
    try:
        with small_disk(folder, 600 + 8 * trials):
            try:
                return Chaos(trials, seed, folder, undisturbed).run()
            finally:
                if keep:
                    shutil.copytree(folder / "runs", folder / "kept", dirs_exist_ok=True)
    finally:
        if keep:
            print(f"kept: {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--keep", action="store_true", help="leave the folder behind")
    words = "a study of undisturbed trials, of an earlier run"
    parser.add_argument("--undisturbed", type=Path, help=words)
    options = parser.parse_args()
    reason = why_not()
    if reason:
        print(reason)
        return 2
    verdict = run_chaos(options.trials, options.seed, options.keep, options.undisturbed)
    print(verdict.table())
    return 1 if verdict.violations else 0


if __name__ == "__main__":
    sys.exit(main())
