"""What a plan proposes where an arm cannot fit: it is accepted, and it does fit."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ablate.config.compose import Composer
from ablate.errors import ConfigError, PlanError
from ablate.plan import memory_of, resolve, single_trial, typed
from ablate.plan.fitting import _applied, _remedies, offered, too_large
from ablate.plan.memory import device_of, processes_of


def proposed(words: list[str]) -> list[str] | None:
    """The overrides of the refusal; empty where there are none, None where it is let through."""
    try:
        single_trial(words)
    except PlanError as error:
        said, by, _ = str(error).partition("It would fit with ")[2].partition(", in ")
        more = any(word in said for word in ("cluster.gpus=", "cluster.nodes=", "parallel="))
        assert more or not by, "who starts them is said where that is not SLURM"
        return said.rstrip(".").split()
    return None


@settings(max_examples=60)
@given(
    batch=st.sampled_from([6, 9, 16, 24, 48, 96, 160]),
    nodes_gpus=st.sampled_from([(1, 0), (1, 1), (1, 2), (1, 3), (2, 3), (2, 8)]),
    parallel=st.sampled_from(["none", "ddp", "fsdp", "hsdp"]),
    memory=st.sampled_from([24, 40, 60, 90, 140, 200, 300, 600]),
    more=st.sampled_from(
        [
            [],
            ["optim=muon"],
            ["precision=fp16"],
            ["train.compile=true"],
            ["loss.chunk=64"],
            ["train.activation_checkpointing=whole_layer"],
            ["cluster=slurm", "cluster.pack=4"],
            ["cluster=slurm", "cluster.pack=8", "cluster.stack=4"],
            ["cluster=slurm"],
        ]
    ),
)
@example(batch=9, nodes_gpus=(2, 3), parallel="ddp", memory=24, more=["optim=muon"])  # more nodes
def test_every_proposal_is_accepted_and_fits(
    batch: int, nodes_gpus: tuple[int, int], parallel: str, memory: int, more: list[str]
) -> None:
    nodes, gpus = nodes_gpus
    words = [
        "model=olmo2", "size=1m", f"parallel={parallel}", *more, f"train.batch_size={batch}",
        f"cluster.nodes={nodes}", f"cluster.gpus={gpus}", f"cluster.gpu_memory={memory}M",
    ]  # fmt: skip
    try:
        help = proposed(words)
    except ConfigError:
        return  # was no legal request
    if not help:
        return
    groups = {word.partition("=")[0] for word in help}  # one option of a group counts
    words = [word for word in words if word.partition("=")[0] not in groups]
    assert proposed([*words, *help]) is None, "the planner accepts it, and it fits"
    helped = config_of(*words, *help)
    trial = typed(helped)
    trial.parallel.check(trial.train, processes_of(trial))
    micro = trial.train.micro_batch_size or batch
    assert (trial.train.batch_size, batch % micro, micro % processes_of(trial)) == (batch, 0, 0)
    assert memory_of(helped).peak <= (offered(helped) or 0)


def test_nothing_needless_is_proposed() -> None:
    """Of 256 tokens the logits are nothing, beside what half the rows save."""
    words = ["model=olmo2", "size=1m", "train.batch_size=32", "cluster.gpus=1"]
    need = memory_of(config_of(*words)).peak
    words += [f"cluster.gpu_memory={need * 3 // 4 // 2**20}M"]
    assert proposed(words) == ["train.micro_batch_size=16"]


@pytest.mark.parametrize("gpus", [1, 3])
def test_rows_are_divided_among_the_gpus_that_are_proposed(gpus: int) -> None:
    """24 = 2 x 2 x 2 x 3 rows halve to 3, which two processes cannot share."""
    words = ["model=olmo2", "size=1m", "train.batch_size=24", f"cluster.gpus={gpus}"]
    config = config_of(*words, "parallel=fsdp", "cluster.gpu_memory=1G")
    memory, seen = memory_of(config), []
    for changes, processes in _remedies(config, typed(config), memory):
        trial = typed(_applied(config, changes))
        assert processes_of(trial) == processes
        trial.parallel.check(trial.train, processes)
        seen.append(processes)
    assert sorted({n for n in seen if n > gpus}) == [n for n in (2, 3, 4, 6, 8, 24) if n > gpus]


def test_an_odd_batch_is_cut_by_its_divisors() -> None:
    words = ["model=olmo2", "size=1m", "train.batch_size=45", "cluster.gpus=1", "loss.chunk=64"]
    config = config_of(*words)
    remedies = _remedies(config, typed(config), memory_of(config))
    sizes = [changes.get("train.micro_batch_size") for changes, n in remedies if n == 1]
    assert sizes[:5] == [15, 9, 5, 3, 1]


def test_nodes_stay_as_large_as_they_are() -> None:
    words = [
        "model=olmo2-7b",
        "precision=bf16",
        "cluster=slurm",
        "parallel=fsdp",
        "cluster.nodes=2",
    ]
    words += ["cluster.gpus=4", "train.batch_size=64", "cluster.gpu_memory=16G"]
    help = proposed(words) or []
    assert "cluster.nodes=4" in help
    assert not any(word.startswith("cluster.gpus=") for word in help)


def test_gradients_are_divided_at_once_where_whole_ones_are_too_large() -> None:
    words = ["model=olmo2-7b", "precision=bf16", "cluster=slurm", "parallel=fsdp", "cluster.gpus=8"]
    words += ["train.batch_size=64", "train.micro_batch_size=8", "cluster.gpu_memory=64G"]
    assert proposed(words) == ["parallel.grad_sync_mode=micro_batch"]
    assert proposed([*words, "parallel.grad_sync_mode=micro_batch"]) is None
    with pytest.raises(PlanError, match=r"Most of it: activations.*, gradients 24"):
        single_trial(words)


@pytest.mark.parametrize("name", ["none", "ddp"])
def test_what_divides_nothing_has_no_such_mode(name: str) -> None:
    with pytest.raises(ConfigError, match=r"parallel\.grad_sync_mode=micro_batch"):
        single_trial([f"parallel={name}", "parallel.grad_sync_mode=micro_batch"])


def test_what_cannot_be_divided_is_copied() -> None:
    words = ["model=olmo2", "size=1m", "cluster=slurm", "cluster.gpus=1", "optim=muon"]
    words += ["train.batch_size=64", "train.sequence_length=128", "loss.chunk=64"]
    config = config_of(*words)
    remedies = list(_remedies(config, typed(config), memory_of(config)))
    more = [changes["parallel.name"] for changes, n in remedies if n > 1]
    assert set(more) == {"ddp"}
    assert all(typed(_applied(config, c)) for c, n in remedies if n > 1)


def test_a_gpu_to_itself_comes_before_more_gpus() -> None:
    words = [
        "model=olmo2",
        "size=1m",
        "cluster=slurm",
        "resources=gpu_packed",
        "train.batch_size=1",
    ]
    words += ["loss.chunk=64", "train.activation_checkpointing=whole_layer"]
    need = memory_of(config_of(*words)).peak
    megabytes = 2 * need // 2**20
    assert proposed([*words, f"cluster.gpu_memory={megabytes}M"]) == ["cluster.pack=1"]


def test_more_processes_than_a_local_launch_has_are_not_promised() -> None:
    words = ["model=olmo2-1b", "cluster.gpus=1", "train.batch_size=64", "cluster.gpu_memory=16G"]
    with pytest.raises(PlanError, match=r"in \d+ processes, which cluster=slurm or tor"):
        single_trial(words)


def test_a_gpu_of_a_known_size_is_meant_where_the_device_is_left_open() -> None:
    words = ["model=olmo2-1b", "train.batch_size=64", "cluster.gpu_memory=24G"]
    with pytest.raises(PlanError, match=r"cluster\.gpu_memory=24G offers 24\.0 GiB"):
        single_trial(words)
    assert device_of(typed(config_of("size=tiny"))) == "cpu"
    single_trial([*words, "train.device=cpu"])
    single_trial([*words, "cluster=slurm"])  # an allocation without a GPU


def test_a_cpu_is_offered_no_gpus() -> None:
    config = config_of("model=olmo2-1b", "train.batch_size=64")
    memory = memory_of(config)
    said = too_large(config, memory, 2**20, "this machine has 1 MiB")
    assert "makes it fit: take a smaller model" in said


def test_what_offers_nothing_is_not_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_work(*_: object) -> None:
        raise AssertionError("computed for nothing")

    monkeypatch.setattr("ablate.plan.study_plan.memory_of", no_work)
    single_trial(["size=tiny"])


def config_of(*words: str) -> dict[str, Any]:
    return resolve(Composer().compose(list(words)))
