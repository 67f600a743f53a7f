"""Memory of a GPU in the plan: its parts, what is refused, what would help."""

from __future__ import annotations

import json
import math
from types import SimpleNamespace

import pytest
import torch

from ablate.cli import launch
from ablate.cli import plan as cli
from ablate.config.compose import Composer
from ablate.config.schema import PrecisionConfig
from ablate.config.schema.parallel import STRATEGIES
from ablate.errors import ConfigError, PlanError
from ablate.launch import room
from ablate.launch.room import check_fits
from ablate.model import ModelConfig, OLMo
from ablate.model.linear import Unembedding
from ablate.model.logits import logit_bytes
from ablate.model.micro_batch import Pass
from ablate.plan import memory_of, resolve, single_trial
from ablate.plan.memory import unit_sizes
from ablate.train.loss import chunked_loss, language_loss
from ablate.train.optim import build_optimiser
from ablate.train.parallel.units import units
from ablate.train.precision import Precision
from benchmarks.memory import BASE, measured, peak_of

GIB = 2**30
LARGE = [
    "model=olmo2-7b", "parallel=fsdp", "precision=bf16", "cluster=slurm", "train.batch_size=1024",
    "model.vocab_size=100278", "model.embedding_size=100352",
]  # fmt: skip


def config_of(*words: str) -> dict:
    return resolve(Composer().compose(list(words)))


def test_seven_billion_on_eight_gpus_by_hand() -> None:
    """7,298,617,344 parameters in float32: 27.2 GiB, an eighth of it a GPU; AdamW twice that."""
    words = [*LARGE, "cluster.gpus=8", "train.micro_batch_size=8"]
    memory = memory_of(config_of(*words, "parallel.grad_sync_mode=micro_batch"))
    share = math.ceil(4 * 7_298_617_344 / 8)
    assert (memory.processes, memory.device) == (8, "cuda")
    assert memory.weights == memory.gradients == memory.update == share
    assert memory.optimiser == 2 * share
    block = 4 * 4096 * 4096 + 22016 * 4096 + 11008 * 4096 + 4 * 4096
    root = 7_298_617_344 - 32 * block  # embedding, head, last norm
    assert memory.gathered == 4 * (root + 2 * block)
    logits = 12 * 4096 * 100352
    assert memory.logits == logits
    held = 5 * share + memory.gathered + memory.activations
    assert memory.peak >= held + logits


def test_more_gpus_less_memory_and_copies_do_not_divide() -> None:
    words = [*LARGE, "train.activation_checkpointing=whole_layer"]
    eight, sixteen = (
        memory_of(
            config_of(
                *words, f"cluster.nodes={n}", "cluster.gpus=8", f"train.micro_batch_size={8 * n}"
            )
        )
        for n in (1, 2)
    )
    assert sixteen.weights == math.ceil(eight.weights / 2)
    assert sixteen.activations == eight.activations
    copies = [*words, "cluster.nodes=2", "cluster.gpus=8", "train.micro_batch_size=16"]
    assert memory_of(config_of(*copies, "parallel=hsdp")).weights == eight.weights
    whole = memory_of(config_of(*copies, "parallel=ddp"))
    assert (whole.weights, whole.gathered) == (4 * 7_298_617_344, 0)


def test_whole_gradients_between_micro_batches_by_hand() -> None:
    """Divided once a batch: 4 bytes a parameter in each of eight GPUs, where a share is an eighth;
    in 16 bits too, for they are added in float32."""
    words = [*LARGE, "cluster.gpus=8", "train.activation_checkpointing=whole_layer"]
    for width, more in ((4, []), (2, ["precision=pure_bf16"])):
        once, once_each, whole = (
            memory_of(config_of(*words, *more, *own))
            for own in (
                ["train.micro_batch_size=8"],
                ["train.micro_batch_size=8", "parallel.grad_sync_mode=micro_batch"],
                ["train.batch_size=8"],
            )
        )
        share = math.ceil(width * 7_298_617_344 / 8)
        assert (once.gradients, once_each.gradients, whole.gradients) == (
            4 * 7_298_617_344, share, share,
        )  # fmt: skip
        held = once.weights + once.optimiser + once.update + once.gathered
        if width == 4:  # its peak is at the loss of a micro-batch that is not the first
            assert once.peak == held + once.gradients + once.activations + once.logits
        copies = memory_of(config_of(*words, *more, "train.micro_batch_size=8", "parallel=hsdp"))
        assert copies.gradients == 4 * 7_298_617_344


@pytest.mark.parametrize("preset", ["gpt2", "olmo2"])
def test_the_backward_pass_of_a_checkpointed_layer_by_hand(preset: str) -> None:
    """In units of a float32 tensor [positions, d], with an MLP of four (OLMo 2: gated, of 8 and 4).

    GPT-2: the four inputs that are kept, the last of them the input of the layer's norm as well;
    norm, queries, keys and values, attention, norm, product, the activation and its input: 15 more.
    Then the gradients of the stream (counted twice) and of both sides of the activation, when what
    ff_out kept is gone. OLMo 2 has norms of their own results, and 12 numbers a token in its MLP.
    """
    words = ["size=1m", "dropout=none", "train.batch_size=32", f"model={preset}"]
    words += ["train.activation_checkpointing=whole_layer", "train.device=cpu"]
    config = config_of(*words)
    model = config["model"]
    assert (model["n_layers"], config["train"]["micro_batch_size"]) == (4, None)
    memory = memory_of(config, device="cpu")
    unit = 4 * 32 * model["max_sequence_length"] * model["d_model"]
    besides = 4 + {"gpt2": 15 + 2 + 4, "olmo2": 27 + 2 + 8}[preset]
    held = memory.weights + memory.optimiser + memory.update
    assert memory.peak == pytest.approx(held + besides * unit, rel=0.01)


@pytest.mark.parametrize("strategy", [None, *STRATEGIES])
def test_units_are_those_that_are_gathered(strategy: str | None) -> None:
    for tied in (True, False):
        model = ModelConfig(
            d_model=64, n_heads=2, n_layers=4, block_group_size=2, vocab_size=96, weight_tying=tied,
            embedding_size=None, eos_token_id=0, pad_token_id=0, init_device="meta",
        )  # fmt: skip
        built = OLMo(model, init_params=False)
        for head in (True, False):
            found = [
                sum(p.numel() for part in unit for p in part.parameters())
                for unit in units(built, strategy, head=head)
            ]
            rest = built.num_params() - sum(found)
            assert unit_sizes(model, strategy, head=head) == [rest, *found]


@pytest.mark.parametrize("precision", ["fp32", "pure_bf16"])
@pytest.mark.parametrize("name", ["adamw", "lion", "muon"])
def test_the_optimisers_state_is_as_large_as_it_says(name: str, precision: str) -> None:
    config = config_of("model=olmo2", "size=tiny", f"optim={name}", f"precision={precision}")
    model = OLMo(ModelConfig(**config["model"])).to(
        torch.bfloat16 if precision == "pure_bf16" else torch.float32
    )
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    from ablate.config.schema import OptimConfig

    optimiser = build_optimiser(model, OptimConfig(**config["optim"]))
    optimiser.step()
    parts = getattr(optimiser, "parts", [optimiser])
    real = sum(
        value.numel() * value.element_size()
        for part in parts
        for state in part.state.values()
        for key, value in state.items()
        if key != "step"
    )
    assert memory_of(config).optimiser == real


@pytest.mark.parametrize("chunk", [0, 256])
@pytest.mark.parametrize("z_loss", [0.0, 1e-5])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "pure_bf16", "fp16_protected"])
def test_logits_are_what_the_loss_holds(precision: str, z_loss: float, chunk: int) -> None:
    """Of a head alone, from its input to all gradients."""
    rows, positions = 4096, 1024
    config = ModelConfig(
        d_model=128, n_heads=2, n_layers=1, vocab_size=rows, weight_tying=False, scale_logits=True,
        embedding_size=None, eos_token_id=0, pad_token_id=0, include_bias=True,
    )  # fmt: skip
    computes = Precision(PrecisionConfig(name=precision), torch.device("cpu"))  # type: ignore
    shapes = ((1, positions, 128), (rows, 128), (rows,))
    hidden, weight, bias = (torch.ones(s, dtype=computes.weights).requires_grad_() for s in shapes)
    head, labels = Unembedding(weight, bias, 0.2), torch.zeros(1, positions, dtype=torch.long)

    def whole() -> torch.Tensor:
        with computes.autocast():
            logits = head.logits(hidden)
        return language_loss(logits, labels, z_loss)

    def in_parts() -> torch.Tensor:
        with computes.autocast():
            return chunked_loss(hidden, head, labels, z_loss, chunk)

    function = in_parts if chunk else whole
    function().sum().backward()  # the gradients are there: what a step adds is the loss
    held = peak_of(lambda: function().sum().backward())
    given = Pass(rows=1, length=positions, precision=precision, device="cpu")
    formula = logit_bytes(config, given, chunk=chunk, z_loss=bool(z_loss))
    if given.autocast and not chunk:  # counted with the activations
        formula += 2 * (weight.numel() + hidden.numel())
    assert formula == pytest.approx(held, rel=0.02)


@pytest.mark.parametrize("strategy", ["one_in_two", "three_in_four", "fine_grained"])
def test_what_is_not_computed_again_is_gone_by_then(strategy: str) -> None:
    """Of four layers the upper ones have let go what they kept when the others are computed again;
    fine_grained computes the activation again, and when that is gone, attention.
    """
    words = [f"train.activation_checkpointing={strategy}", "train.batch_size=4", "train.steps=2"]
    config = config_of(*BASE, "model=olmo2", *words)
    formula = memory_of(config, device="cpu").peak
    assert formula == pytest.approx(measured(config), rel=0.05)


@pytest.mark.parametrize("optimiser", ["adamw", "lion"])
def test_where_weights_are_all_the_norms_and_the_update_are_seen(optimiser: str) -> None:
    """On a CPU squares are summed in float64, of a copy of one gradient at a time."""
    words = ["model.d_model=256", "model.max_sequence_length=32", f"optim={optimiser}"]
    words += ["train.activation_checkpointing=whole_layer", "train.batch_size=1", "train.steps=2"]
    config = config_of(*BASE, "model=olmo2", *words)
    assert memory_of(config, device="cpu").peak == pytest.approx(measured(config), rel=0.01)


def test_what_cannot_fit_is_refused_with_what_dominates_and_what_helps(
    tmp_path, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sweeps").mkdir()
    (tmp_path / "sweeps" / "large.yaml").write_text(
        "# @package _global_\nsweep:\n  question: Which?\n  baseline: [model=olmo2-1b]\n"
        "  factors: {norm: [norm=layer]}\n"
    )
    words = ["sweep=large", "cluster=slurm", "cluster.gpus=1", "train.batch_size=64"]
    for verb in (cli.main, lambda argv: launch.main([*argv, "--dry-run"])):
        with pytest.raises(PlanError, match=r"Arm baseline needs .* offers 24\.0 GiB") as refused:
            verb([*words, "cluster.gpu_memory=24G"])
        assert "Most of it: activations" in str(refused.value)
        assert "train.micro_batch_size=" in str(refused.value)
        assert "\n" not in str(refused.value)
    assert not (tmp_path / "runs").exists()
    words = str(refused.value).partition("It would fit with ")[2].rstrip(".").split()
    helped = config_of(
        "model=olmo2-1b", "cluster=slurm", "cluster.gpus=1", "train.batch_size=64", *words
    )
    assert memory_of(helped).peak <= 24 * GIB, "what it proposes does fit"


def test_an_unknown_gpu_refuses_nothing_and_a_shared_one_is_shared() -> None:
    words = ["model=olmo2-1b", "cluster.gpus=1", "train.batch_size=64"]
    single_trial(words)
    small = ["size=1m", "cluster=slurm", "resources=gpu_packed"]
    single_trial([*small, "cluster.gpu_memory=1G"])
    with pytest.raises(PlanError, match="to each of 4 trials on it"):
        single_trial([*small, "cluster.gpu_memory=200M", "train.batch_size=64"])
    with pytest.raises(ConfigError, match=r"cluster\.gpu_memory"):
        single_trial([*small, "cluster.gpu_memory=80"])


def test_this_machine_is_asked_where_the_trial_runs_here() -> None:
    config = config_of("size=1m")
    check_fits(config, "cpu", GIB)
    with pytest.raises(PlanError, match=r"this machine has 100\.0 MiB"):
        check_fits({**config, "train": {**config["train"], "batch_size": 64}}, "cpu", 100 * 2**20)


def test_text_and_json_show_it_for_every_arm(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["sweep=hello"]) == 0
    assert "Memory of a process on the CPU: " in capsys.readouterr().out
    assert cli.main(["sweep=hello", "--json"]) == 0
    arms = json.loads(capsys.readouterr().out)["arms"]
    for arm in arms:
        shown = arm["memory_per_gpu"]
        assert shown["weights"] == 4 * arm["parameters"]
        assert shown["peak"] > sum(shown[k] for k in ("weights", "optimiser", "activations"))


def test_a_gpu_of_this_machine_is_asked_for_its_own_memory(monkeypatch) -> None:
    """Where there is one, `auto` takes it; memory of the host says nothing then."""
    config = resolve(Composer().compose(["size=tiny"]))
    monkeypatch.setattr(room.host, "host_memory", lambda: 2**20)
    monkeypatch.setattr(room, "_may_have_gpus", lambda: False)
    assert room.gpus_here(config) == 0
    assert "this machine has 1.0 MiB" in (room.too_large_here(config) or "")
    absent = {**config, "train": {**config["train"], "device": "cuda"}}
    assert room.too_large_here(absent) is None, "which is refused for the GPU that is not there"
    monkeypatch.setattr(room, "_may_have_gpus", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    there = SimpleNamespace(total_memory=2**21)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: there)
    assert room.gpus_here(config) == 2
    assert "this GPU has 2.0 MiB" in (room.too_large_here(config) or "")
    there.total_memory = 2**40
    assert room.too_large_here(config) is None
    slurm = {**config, "cluster": {**config["cluster"], "name": "slurm"}}
    there.total_memory = 1
    assert room.too_large_here(slurm) is None, "which is another machine"
