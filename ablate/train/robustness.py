"""Losses of the finished model under noise in its input, and on text of another domain."""

from __future__ import annotations

from ablate.data.corrupted import corrupted_validation
from ablate.train.run import Run
from ablate.train.validation import held_out_loss

__all__ = ["robustness"]


def robustness(run: Run, clean: float) -> dict[str, float]:
    """What `evaluate` asks for, over as many tokens as the validation has.

    The noise comes from the trial's seed, as the order of the data does: arms that are paired by
    seed see the same.

    Args:
        run: at its last step.
        clean: its val/loss, nats a token.

    Returns:
        `robust/noise_loss` and `robust/shift_loss` (nats a token), those that are asked for, and
        `robust/noise_excess` and `robust/shift_excess`: by how much they exceed `clean`. Of
        several processes each returns the same.
    """
    c, train = run.config.evaluate, run.config.train
    tokens = train.validation_tokens or len(run.data.held_out)
    rows = train.micro_batch_size or train.batch_size
    row = {}
    if c.token_noise is not None:
        noisy = corrupted_validation(
            run.data,
            run.sequence_length,
            tokens,
            batch_size=rows,
            share=c.token_noise,
            seed=run.config.seed,
        )
        row["noise"] = held_out_loss(run, noisy).loss
    if run.shifted is not None:
        other = run.shifted.validation(run.sequence_length, tokens, batch_size=rows)
        row["shift"] = held_out_loss(run, other).loss
    losses = {f"robust/{kind}_loss": loss for kind, loss in row.items()}
    return losses | {f"robust/{kind}_excess": loss - clean for kind, loss in row.items()}
