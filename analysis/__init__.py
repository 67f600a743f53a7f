"""Frames in, frames out: recorded trials to tables, figures and verdicts. Imports no torch.

frames = load("runs/hello")             trials, curves, events: docs/analysis.md has the schema
judgement = judge(frames)               comparable? which learning rate? effects, intervals,
verdicts judgement.table                         one row an arm
publish(judgement, Path("report"))      the page, Markdown, CSV, Parquet, LaTeX, figures
"""

from ablate.analysis.bands import bands
from ablate.analysis.effects import effects
from ablate.analysis.frames import Frames, load
from ablate.analysis.judgement import Judgement, judge
from ablate.analysis.publish import publish
from ablate.analysis.rule import Rule

__all__ = ["Frames", "Judgement", "Rule", "bands", "effects", "judge", "load", "publish"]
