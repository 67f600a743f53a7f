"""Frames in, frames out: recorded trials to tables, figures and verdicts. Imports no torch.

`load` reads studies into the frames `trials`, `curves` and `events` (see docs/analysis.md),
`judge` compares what may be compared and gives the table of effects, intervals and verdicts, and
`ablate.analysis.publish.publish` writes the page, Markdown, CSV, Parquet, LaTeX and figures.
"""

from ablate.analysis.bands import bands
from ablate.analysis.effects import effects
from ablate.analysis.foreign import load_csv, load_wandb
from ablate.analysis.frames import Frames, load
from ablate.analysis.judgement import Judgement, judge
from ablate.analysis.rule import Rule

__all__ = [
    "Frames",
    "Judgement",
    "Rule",
    "bands",
    "effects",
    "judge",
    "load",
    "load_csv",
    "load_wandb",
]
