"""Interactive figures beside the tables: a table (and the material) in, plotly's JSON out."""

from ablate.analysis.plots.factors import attribution, half_normal, interaction
from ablate.analysis.plots.points import pareto, scaling, u_curve

__all__ = ["attribution", "half_normal", "interaction", "pareto", "scaling", "u_curve"]
