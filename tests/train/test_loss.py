"""The loss is the true mean over real labels, and its z-loss multiplier works."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from ablate.config.schema import TrialConfig
from ablate.data import IGNORED
from ablate.model.linear import Unembedding
from ablate.train.loader import Loader
from ablate.train.loop import train
from ablate.train.loss import chunked_loss, language_loss
from ablate.train.record import Silence
from ablate.train.run import assemble
from ablate.train.watch import Watch


def example(seed: int = 0, b: int = 3, t: int = 7, v: int = 11):
    g = torch.Generator().manual_seed(seed)
    logits = torch.randn(b, t, v, generator=g) * 3
    labels = torch.randint(v, (b, t), generator=g)
    labels[:, -1] = IGNORED
    labels[0, 2] = IGNORED
    return logits, labels


def test_sum_counts_real_labels_only():
    logits, labels = example()
    nats = language_loss(logits, labels)[0]
    picked = [
        -torch.log_softmax(logits[i, j], 0)[labels[i, j]]
        for i in range(3)
        for j in range(7)
        if labels[i, j] != IGNORED
    ]
    assert len(picked) == 17
    torch.testing.assert_close(nats, torch.stack(picked).sum())


def test_z_loss_and_its_gradient_grow_with_the_multiplier():
    logits, labels = example()
    gradients = []
    for multiplier in (1e-4, 3e-4):
        x = logits.clone().requires_grad_()
        z = language_loss(x, labels, multiplier)[1]
        real = labels != IGNORED
        torch.testing.assert_close(z, multiplier * logits.logsumexp(-1)[real].square().sum())
        (gradient,) = torch.autograd.grad(z, x)
        assert gradient[~real].abs().max() == 0
        gradients.append(gradient)
    torch.testing.assert_close(gradients[1], 3 * gradients[0])


def test_z_loss_leaves_the_logged_cross_entropy_alone():
    logits, labels = example()
    assert torch.equal(language_loss(logits, labels, 0.1)[0], language_loss(logits, labels)[0])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_logits_are_reduced_in_float32(dtype):
    logits, labels = example(b=64, t=64)
    low = logits.to(dtype)
    nats = language_loss(low, labels)[0]
    exact = F.cross_entropy(
        low.double().flatten(0, 1), labels.flatten(), ignore_index=IGNORED, reduction="sum"
    )
    assert nats.dtype == torch.float32
    assert float(nats) == pytest.approx(float(exact), rel=1e-6)


def test_upstreams_cross_entropy_is_ours_times_the_share_of_real_labels():
    from olmo.train import cross_entropy_loss

    logits, labels = example()
    theirs, z = cross_entropy_loss(
        logits.flatten(0, 1),
        labels.flatten(),
        ignore_index=IGNORED,
        reduction="sum",
        compute_z_loss=True,
        z_loss_multiplier=1e-4,
    )
    ours = language_loss(logits, labels, 1e-4)
    torch.testing.assert_close(ours[0], theirs)
    torch.testing.assert_close(ours[1], z)


HEADS = [
    (bias, scale, z_loss) for bias in (False, True) for scale in (1.0, 0.3) for z_loss in (0, 1e-2)
]


@pytest.mark.parametrize(("bias", "scale", "z_loss"), HEADS)
@pytest.mark.parametrize("chunk", [1, 5, 64, 1000])
def test_a_chunked_loss_and_its_gradients_are_those_of_the_whole(bias, scale, z_loss, chunk):
    g = torch.Generator().manual_seed(3)
    hidden = torch.randn(4, 16, 8, generator=g, requires_grad=True)
    weight = torch.randn(50, 8, generator=g, requires_grad=True)
    offset = torch.randn(50, generator=g, requires_grad=True) if bias else None
    labels = torch.randint(50, (4, 16), generator=g).index_fill(1, torch.tensor([2, 15]), IGNORED)
    head = Unembedding(weight, offset, scale)
    leaves = [x for x in (hidden, weight, offset) if x is not None]

    chunked = chunked_loss(hidden, head, labels, z_loss, chunk)
    found = torch.autograd.grad(chunked.sum() / 7, leaves)

    exact = [x.detach().double().requires_grad_() for x in leaves]
    double = Unembedding(exact[1], exact[2] if bias else None, scale)
    # The reference is float64, so `language_loss` (which reduces in float32) cannot be it.
    logits = double.logits(exact[0])
    nats = F.cross_entropy(
        logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED, reduction="sum"
    )
    z = z_loss * logits.logsumexp(-1)[labels != IGNORED].square().sum()
    wanted = torch.autograd.grad((nats + z) / 7, exact)
    torch.testing.assert_close(chunked.double(), torch.stack((nats, z)), rtol=1e-6, atol=1e-5)
    for a, b in zip(found, wanted, strict=True):
        assert (a - b).abs().max() <= 1e-6 * b.abs().max()
    with torch.no_grad():
        torch.testing.assert_close(
            chunked_loss(hidden, head, labels, z_loss, chunk), chunked.detach()
        )


def test_a_chunked_loss_asks_for_no_gradient_that_nobody_wants():
    hidden, weight = torch.randn(1, 6, 4, requires_grad=True), torch.randn(9, 4)
    labels = torch.arange(6)[None]
    chunked_loss(hidden, Unembedding(weight, None, 1.0), labels, 0.0, 4).sum().backward()
    assert hidden.grad is not None
    assert weight.grad is None


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("tying", [True, False])
def test_a_trial_with_chunks_trains_as_one_without(config, precision, tying):
    losses = []
    for chunk in (0, 24):
        settings = config(
            model={"weight_tying": tying, "include_bias": True},
            precision={"name": precision},
            loss={"z_loss": 1e-4, "chunk": chunk},
            train={"micro_batch_size": 2, "measure_every": 2},
        )
        run = assemble(TrialConfig.from_mapping(settings), torch.device("cpu"))
        rows = []
        record = Silence()
        record.show = rows.extend
        with Watch(run, record) as watch, Loader(run) as loader:
            train(run, 0, watch, loader, lambda step: None, lambda: None)
        kept = ("train/", "val/", "model/log") if precision == "fp32" else ("train/loss", "val/")
        losses.append([{k: v for k, v in r.items() if k.startswith(kept)} for r in rows])
    assert len(losses[0]) > 3
    for a, b in zip(*losses, strict=True):
        assert b == pytest.approx(a, rel=1e-4 if precision == "fp32" else 1e-2, abs=1e-5)
