"""Plans: a sweep becomes checked, matched, deduplicated trials and a manifest. No torch here.

sweep.py      the typed `sweep:` section        factors.py   levels and their labels
spending.py   the level of each look             lists.py     levels zipped, multiplied, united
planning.py   the way from sweep to plan        exclude.py   combinations left out
trials.py     arms, seeds and rates             notes.py     what a reader has to know
without_effect.py  overrides that no trial reads
arms.py       inert, conflicting, double arms   effective.py what a run reads of its configuration
sizing.py     equal steps, equal size           budget.py    one number of steps for all
match.py      resizing to the baseline          canonical.py the form that config.yaml holds
noise.py      spread of earlier studies         power.py     what can be detected
learning.py   power and cost of a plan            speed.py     how fast arms ran here
lineage.py    baselines that were adopted         round.py     the next round of a search
kernel_choice.py the kernels of an arm          extension.py more seeds or arms for it
frozen.py     the plan of a frozen study
memory.py     bytes of a GPU, by formula        fitting.py   refuses what cannot fit
manifest.py   manifest.json                     single.py    `ablate train` without a sweep
stacking.py   trials that share a graph
"""

from __future__ import annotations

from ablate.design.rule import decide_hash, rule_changes
from ablate.plan.canonical import completed, difference, flat, resolve, typed
from ablate.plan.effective import effective, effective_fingerprint, unread
from ablate.plan.fitting import gib, refuse_too_large, too_large
from ablate.plan.frozen import frozen_plan
from ablate.plan.kernel_choice import kernel_lines
from ablate.plan.manifest import code_version, environment
from ablate.plan.memory import Memory, memory_of, micro_batch
from ablate.plan.planning import plan_sweep, plan_written, study_of_sweep
from ablate.plan.single import DEFAULT_STUDY, SingleTrial, arm_name, single_trial
from ablate.plan.sizing import costs
from ablate.plan.study_plan import Plan, PlannedArm, PlannedTrial
from ablate.plan.sweep import DecideConfig, SweepConfig
from ablate.plan.without_effect import refuse_common

__all__ = [
    "DEFAULT_STUDY",
    "DecideConfig",
    "Memory",
    "Plan",
    "PlannedArm",
    "PlannedTrial",
    "SingleTrial",
    "SweepConfig",
    "arm_name",
    "code_version",
    "completed",
    "costs",
    "decide_hash",
    "difference",
    "effective",
    "effective_fingerprint",
    "environment",
    "flat",
    "frozen_plan",
    "gib",
    "kernel_lines",
    "memory_of",
    "micro_batch",
    "plan_sweep",
    "plan_written",
    "refuse_common",
    "refuse_too_large",
    "resolve",
    "rule_changes",
    "single_trial",
    "study_of_sweep",
    "too_large",
    "typed",
    "unread",
]
