"""The loss is the true mean over real labels, and its z-loss multiplier works."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from ablate.data import IGNORED
from ablate.train.loss import language_loss


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
