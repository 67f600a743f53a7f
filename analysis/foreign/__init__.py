"""Curves that were trained elsewhere, in the same frames: a table, or runs in wandb."""

from ablate.analysis.foreign.runs import load_wandb
from ablate.analysis.foreign.table import load_csv

__all__ = ["load_csv", "load_wandb"]
