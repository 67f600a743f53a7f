"""The cluster of the tests is a real one: jobs, GPUs, accounting, faults."""

from __future__ import annotations

from slurm_box import Box


def test_a_job_runs_on_a_node_with_a_name_of_its_own_and_a_gpu(box: Box) -> None:
    out = box.run("srun", "--immediate=30", "--gres=gpu:1", "-w", "n2", "sh", "-c", "hostname; env")
    assert out.startswith("n2\n")
    assert "CUDA_VISIBLE_DEVICES=" in out


def test_accounting_keeps_the_exit_code(box: Box) -> None:
    done = box.call("sbatch", "-W", "--parsable", "-o", "/dev/null", "--wrap", "exit 3")
    assert done.returncode == 3
    job = done.stdout.strip()
    assert box.until(lambda: box.history(job), 10) == [("FAILED", "3:0")]


def test_clear_brings_a_killed_node_back(box: Box) -> None:
    box.kill_node("n4")
    box.clear()
    assert box.run("sinfo", "-h", "-n", "n4", "-p", "main", "-o", "%T").strip() == "idle"
    out = box.run("srun", "--immediate=30", "-w", "n4", "hostname")
    assert out == "n4\n"
