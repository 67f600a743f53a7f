"""Every table and plot of the report besides the verdicts: one line each.

To add one: a pure function frame -> frame in `tables/` (and a plot in `plots/`), a function in
`parts` that hands it its part of the material, and a `Section` (see `section`) here.
"""

from __future__ import annotations

import pandas as pd

from ablate.analysis import parts, plots
from ablate.analysis.material import Material
from ablate.analysis.section import Section

__all__ = ["SECTIONS", "Section", "sections"]

SECTIONS = (
    Section(
        name="claims",
        title="Claims",
        note="What was claimed before the runs, and what came out. Supported: the interval lies on "
        "the claimed side of 0 and reaches the claimed size; weaker: it lies on that side, wholly "
        "short of the size; contradicted: on the other side, or the equivalence test holds.",
        make=parts.claims,
        columns={
            "verdict": ("verdict", "s"),
            "statement": ("claim", "s"),
            "metric": ("metric", "s"),
            "of": ("of", "s"),
            "against": ("against", "s"),
            "claimed": ("claimed", "s"),
            "measured": ("measured", "s"),
            "nearest": ("nearest that can be tested", "s"),
            "nearest_verdict": ("which is", "s"),
            "note": ("note", "s"),
            "source": ("source", "s"),
        },
    ),
    Section(
        name="factor_effects",
        title="Main effects and interactions",
        note="Least squares with the seed as a block. An interaction is by how much one effect "
        "changes when the other is on.",
        make=parts.factors,
        columns={
            "term": ("term", "s"),
            "effect": ("effect", "+m"),
            "low": ("low", "+m"),
            "high": ("high", "+m"),
            "p_holm": ("p (Holm)", "p"),
            "aliases": ("cannot be told from", "s"),
        },
        terms={
            "low": "Low, high: the {level} interval of each effect alone, not adjusted for the "
            "others.",
            "p_holm": "Holm's p: adjusted for all rows.",
        },
        plots=(plots.interaction, plots.half_normal),
        terminal=True,
    ),
    Section(
        name="attribution",
        title="What each step contributed",
        note="Shapley values over the orders that were run: the shares sum to the total change. "
        "Two or three of more orders are too few for an interval: what the steps do in the orders "
        "that were not run cannot be told from them; four would do.",
        make=parts.attribution,
        columns={
            "step": ("step", "s"),
            "gain": ("change", "+m"),
            "low": ("low", "+m"),
            "high": ("high", "+m"),
            "error": ("s.e.", "m"),
            "noise_error": ("by noise", "m"),
            "share": ("share", "%"),
            "orders": ("orders", "d"),
        },
        terms={
            "low": "Low, high: the {level} interval of each step alone.",
            "error": "Standard error (s.e.): by the trials' noise and, where only some of the "
            "orders were run, by not having seen the others.",
            "noise_error": "By noise: the part of it by the trials' noise alone.",
            "share": "Share: of the total change; none where its interval contains 0.",
            "orders": "Orders: how many were run.",
        },
        plots=(plots.attribution,),
        terminal=True,
    ),
    Section(
        name="equivalents",
        title="The effects in steps, FLOPs and time",
        note="Read off the reference's own curve. Its learning rate had not yet decayed there, so "
        "that within the curve an advantage is understated and a disadvantage overstated.",
        make=parts.equivalents,
        columns={
            "arm": ("arm", "s"),
            "steps": ("equal to steps", "i"),
            "steps_low": ("from", "i"),
            "steps_high": ("to", "i"),
            "gained": ("gained", "+%"),
            "reading": ("reading", "s"),
            "metric": ("curve of", "s"),
            "flops_ratio": ("FLOPs", "x"),
            "time_ratio": ("time", "x"),
        },
        terms={
            "steps": "Equal to steps: after so many the reference has the arm's final value.",
            "steps_low": "From, to: the same for the ends of the arm's {level} interval; empty "
            "where they are out of reach.",
            "gained": "Gained: by how much those steps exceed the budget.",
            "reading": "Reading: within the reference's curve; extrapolated past its end by at "
            "most half the budget; beyond that, nothing is said.",
            "flops_ratio": "FLOPs, time: what the reference would need for the arm's value, over "
            "what the arm needed; above 1 the arm is cheaper.",
        },
        terminal=True,
    ),
    Section(
        name="sensitivity",
        title="Sensitivity to the learning rate",
        note="After arXiv 2309.14322; diverged trials stand at the value at initialisation.",
        make=parts.sensitivity,
        columns={
            "arm": ("arm", "s"),
            "sensitivity": ("sensitivity", "m"),
            "low": ("low", "m"),
            "high": ("high", "m"),
            "seeds": ("seeds", "d"),
            "lr_low": ("from lr", "g"),
            "lr_high": ("to lr", "g"),
        },
        terms={
            "sensitivity": "Sensitivity: expected excess over the arm's own best value, over the "
            "range of rates that all arms tried.",
            "low": "Low, high: its 95 % interval.",
        },
        terminal=True,
    ),
    Section(
        name="u_curves",
        title="U-curves",
        note="Mean over seeds of the final value at each learning rate; bars from least to most. "
        "A cross: every seed diverged.",
        make=parts.u_curves,
        columns={
            "arm": ("arm", "s"),
            "lr": ("lr", "g"),
            "mean": ("mean", "m"),
            "low": ("least", "m"),
            "high": ("most", "m"),
            "seeds": ("seeds", "d"),
            "diverged": ("diverged", "d"),
        },
        plots=(plots.u_curve,),
    ),
    Section(
        name="stability",
        title="Stability",
        note="Means over the trials of an arm.",
        make=parts.stability,
        columns={
            "arm": ("arm", "s"),
            "trials": ("trials", "d"),
            "diverged": ("diverged", "d"),
            "rate_high": ("at most", "%"),
            "spikes": ("spikes", "g"),
            "data": ("by data", "g"),
            "own": ("by arm", "g"),
            "responses": ("responses", "g"),
            "skipped": ("skipped", "g"),
            "spike_score": ("spike score", "g"),
            "damage": ("damage", "g"),
            "attention_logit_max": ("largest logit", "g"),
        },
        terms={
            "rate_high": "At most: the share of trials that diverge, upper end of its 95 % "
            "interval.",
            "spikes": "Spikes: alarms a trial; in its first 256 steps more of them are false.",
            "data": "By data, by arm: their cause, where trials of one seed saw the same batches.",
            "responses": "Responses: what a trial did about its spikes (spikes=), in actions.",
            "skipped": "Skipped: steps a trial without an update, for a gradient overflowed in "
            "float16 or a response said so.",
            "spike_score": "Spike score: OLMo 2's, in per cent of steps.",
            "damage": "Damage: nats x steps per 1,000 steps above the level before.",
            "attention_logit_max": "Largest logit: of attention, before the softmax, in any trial.",
        },
    ),
    Section(
        name="residuals",
        title="Data or arm",
        note="Steps of one seed see the same batch in every arm. What all arms show is the data; "
        "what one shows alone is its own.",
        terms={
            "residual_sd": "Noise of a step: standard deviation of its loss around the trend.",
            "shared": "Explained by data: the share of its variance that the other arms show too.",
            "worst_step": "Stands alone at: the step at which the arm lies highest above the "
            "others; by sd: how far, in standard deviations of that difference.",
        },
        make=parts.residuals,
        columns={
            "arm": ("arm", "s"),
            "residual_sd": ("noise of a step", "g"),
            "own_sd": ("its own", "g"),
            "shared": ("explained by data", "%"),
            "worst_step": ("stands alone at", "d"),
            "worst": ("by sd", "g"),
        },
    ),
    Section(
        name="tail_noise",
        title="Noise of the last validations",
        note="Spread of an arm's last validations around their trend: a lower bound of the spread "
        "between seeds, which costs no second seed.",
        make=parts.tail_noise,
        columns={
            "arm": ("arm", "s"),
            "tail_sd": ("sd of last", "g"),
            "validations": ("validations", "d"),
            "seed_sd": ("sd over seeds", "g"),
            "seeds": ("seeds", "d"),
        },
    ),
    Section(
        name="costs",
        title="What the arms cost",
        note="Medians over the trials that count.",
        make=parts.costs,
        columns={
            "arm": ("arm", "s"),
            "parameters": ("parameters", "si"),
            "flops": ("FLOPs", "si"),
            "flops_ratio": ("to baseline", "x"),
            "seconds": ("seconds", "si"),
            "seconds_ratio": ("to baseline", "x"),
            "tokens_per_second": ("tokens/s", "si"),
            "peak_memory": ("peak memory", "si"),
            "peak_memory_ratio": ("to baseline", "x"),
        },
    ),
    Section(
        name="pareto",
        title="Worth its cost",
        note="On the front, no other arm is at least as good and as cheap. It compares means, and "
        "knows nothing of their noise. An arm with a diverged trial has no mean, and no place.",
        make=parts.pareto,
        columns={
            "arm": ("arm", "s"),
            "cost": ("over", "s"),
            "amount": ("cost", "si"),
            "mean": ("mean", "m"),
            "front": ("on the front", "s"),
        },
        plots=(plots.pareto,),
    ),
    Section(
        name="scaling",
        title="Scaling",
        note="L = E + A x^-b, one floor E for all; the gap to the baseline's variant is the fit's, "
        "at ten times the largest that was run. The interval holds if the form does.",
        make=parts.scaling,
        columns={
            "variant": ("variant", "s"),
            "over": ("over", "s"),
            "exponent": ("exponent", "g"),
            "exponent_low": ("low", "g"),
            "exponent_high": ("high", "g"),
            "sizes": ("sizes", "d"),
            "far": ("gap at", "si"),
            "gap": ("gap", "+m"),
            "gap_low": ("low", "+m"),
            "gap_high": ("high", "+m"),
        },
        plots=(plots.scaling,),
    ),
)


def sections(m: Material) -> list[tuple[Section, pd.DataFrame]]:
    """Those that have something to say of this study."""
    made = ((s, s.make(m)) for s in SECTIONS)
    return [(s, frame) for s, frame in made if len(frame)]
