"""Every schedule against upstream's own code, step by step, and the laws that upstream breaks."""

from __future__ import annotations

import warnings
from importlib import import_module
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from ablate.config.schema import ScheduleConfig
from ablate.config.typed import build
from ablate.errors import ConfigError
from ablate.train.schedule import SCHEDULES, bolt_on_warmup, build_schedule

PEAK, STEPS, WARMUP = 3e-3, 100, 10
STAGES = [
    {"duration": 10, "start_lr": 0.0, "end_lr_fraction": 1.0},
    {"duration": 40, "shape": "cosine", "end_lr": 2e-4},
    {"duration": 30, "shape": "linear", "start_lr_fraction": 0.7, "end_lr": 1e-4},
]
OVERRIDE = {"start": 40, "duration": 20, "shape": "cosine", "end_lr_fraction": 0.05}
FIELDS = {
    "wsds": {"periods": [50, 80]},
    "composable": {"stages": STAGES},
    "sequential": {
        "stages": [
            {"name": "cos_with_warmup", "warmup": 10, "duration": 30},
            {"name": "constant", "duration": "20%"},
            {"name": "linear_with_warmup", "warmup": 0, "alpha_f": 0.0},
        ]
    },
}


def ours(name: str, *, steps: int = STEPS, **fields):
    fields = {"warmup": WARMUP, **FIELDS.get(name, {}), **fields}
    return build_schedule(
        ScheduleConfig(name=name, **fields), peak=PEAK, steps=steps, tokens_per_step=1000
    )


def olmo(name: str, t_max: int | None = None, warmup_min_lr: float | None = None):
    upstream = import_module("olmo.optim")
    no_clip = {
        "grad_clip_warmup_steps": None,
        "grad_clip_warmup_factor": None,
        "warmup_min_lr": warmup_min_lr,
    }
    decaying = {"warmup_steps": WARMUP, "t_max": t_max, "alpha_f": 0.2, **no_clip}
    cosine = upstream.CosWithWarmup(**decaying)
    root = upstream.InvSqrtWithWarmup(warmup_steps=WARMUP, **no_clip)
    scheduler = {
        "cosine_with_warmup": cosine,
        "linear_with_warmup": upstream.LinearWithWarmup(**decaying),
        "inverse_sqrt_with_warmup": root,
        "max_scheduler": upstream.MaxScheduler(sched1=cosine, sched2=root, **no_clip),
        "constant": upstream.ConstantScheduler(**no_clip),
        "constant_with_warmup": upstream.ConstantWithWarmupScheduler(
            warmup_steps=WARMUP, **no_clip
        ),
        "cosine_linear_envelope": upstream.CosLinearEnvelope(**decaying),
    }[name]
    return lambda t: scheduler.get_lr(PEAK, t, STEPS)


def olmo_core(name: str, t_max: int | None = None):
    s = import_module("olmo_core.optim.scheduler")
    stage, override = s.ComposableSchedulerStage, s.OverrideDecay(**OVERRIDE)
    warnings.filterwarnings("ignore", message="'ComposableScheduler' ignores 't_max'")
    scheduler = {
        "cos_with_warmup": lambda: s.CosWithWarmup(warmup=WARMUP, alpha_f=0.2, t_max=t_max),
        "half_cos_with_warmup": lambda: s.HalfCosWithWarmup(
            warmup=WARMUP, alpha_f=0.2, t_max=t_max
        ),
        "inv_sqrt_with_warmup": lambda: s.InvSqrtWithWarmup(warmup=WARMUP, alpha_f=0.2),
        "cos_with_warmup_and_linear_decay": lambda: s.CosWithWarmupAndLinearDecay(
            warmup=WARMUP, alpha_f=0.2, t_max=t_max, decay_fraction=0.2
        ),
        "wsd": lambda: s.WSD(warmup=WARMUP, decay_fraction=0.2),
        "wsds": lambda: s.WSDS(period_lengths=[50, 30], warmup=WARMUP, decay_fraction=0.2),
        "power_lr": lambda: s.PowerLR(warmup=WARMUP, decay_fraction=0.2),
        "exponential": lambda: s.ExponentialScheduler(lr_min=0.2 * PEAK),
        "composable": lambda: s.ComposableScheduler(stages=[stage(**v) for v in STAGES]),
        "composable+override": lambda: s.ComposableScheduler(
            stages=[stage(**v) for v in STAGES], override_decay=override
        ),
        "sequential": lambda: s.SequentialScheduler(
            schedulers=[
                s.CosWithWarmup(warmup=10),
                s.ConstantScheduler(),
                s.LinearWithWarmup(warmup=0, alpha_f=0.0),
            ],
            schedulers_max=[30, 20],
        ),
    }[name]()
    return lambda t: scheduler.get_lr(PEAK, t, STEPS)


OLMO = [
    "constant",
    "constant_with_warmup",
    "linear_with_warmup",
    "cosine_with_warmup",
    "inverse_sqrt_with_warmup",
    "cosine_linear_envelope",
    "max_scheduler",
]


@pytest.mark.parametrize("t_max", [None, 80])
@pytest.mark.parametrize("warmup_min_lr", [None, 0.0, 1e-3])
@pytest.mark.parametrize("name", OLMO)
def test_olmo_schedules_equal_upstream_at_every_step(name, warmup_min_lr, t_max):
    rate = ours(name, alpha_f=0.2, t_max=t_max, warmup_min_lr=warmup_min_lr)
    theirs = olmo(name, t_max, warmup_min_lr)
    for t in range(1, STEPS + 20):
        assert rate(t) == pytest.approx(theirs(t), rel=1e-12, abs=1e-18), t


@pytest.mark.parametrize("name", sorted(set(SCHEDULES) - set(OLMO)))
def test_olmo_core_schedules_equal_upstream_at_every_step(name):
    rate, theirs = ours(name, alpha_f=0.2, decay=0.2), olmo_core(name)
    for t in range(1, STEPS + 1):
        assert rate(t) == pytest.approx(theirs(t), rel=1e-12, abs=1e-18), t


@pytest.mark.parametrize(
    "name", ["cos_with_warmup", "half_cos_with_warmup", "cos_with_warmup_and_linear_decay"]
)
def test_olmo_core_cosines_follow_t_max_as_upstream(name):
    rate, theirs = ours(name, alpha_f=0.2, decay=0.2, t_max=120), olmo_core(name, t_max=120)
    for t in range(1, STEPS + 1):
        assert rate(t) == pytest.approx(theirs(t), rel=1e-12, abs=1e-18), t


def test_override_decay_takes_over_as_upstream():
    rate = ours("composable", override_decay=OVERRIDE)
    theirs = olmo_core("composable+override")
    for t in range(1, STEPS + 1):
        assert rate(t) == pytest.approx(theirs(t), rel=1e-12, abs=1e-18), t


def test_bolt_on_warmup_equals_upstream():
    upstream = import_module("olmo.optim")
    none = dict.fromkeys(("grad_clip_warmup_steps", "grad_clip_warmup_factor", "warmup_min_lr"))
    inner = upstream.CosWithWarmup(warmup_steps=WARMUP, alpha_f=0.1, **none)
    theirs = upstream.BoltOnWarmupScheduler(inner=inner, warmup_start=30, warmup_end=50, **none)
    rate = bolt_on_warmup(ours("cosine_with_warmup"), 30, 50)
    for t in range(STEPS + 1):
        assert rate(t) == pytest.approx(theirs.get_lr(PEAK, t, STEPS), rel=1e-12), t


@pytest.mark.parametrize("name", SCHEDULES)
@settings(max_examples=12)
@given(
    steps=st.integers(30, 500),
    warmup=st.floats(0.05, 0.3),
    alpha=st.floats(0.01, 1.0),
    decay=st.floats(0.0, 0.3),
)
def test_no_schedule_leaves_zero_to_peak_also_beyond_its_end(name, steps, warmup, alpha, decay):
    """Upstream's linear tails turn negative after the last step."""
    fields = {"periods": None} if name == "wsds" else {}
    if name in ("composable", "sequential"):
        fields, steps = {}, STEPS
    rate = ours(name, steps=steps, warmup=warmup, alpha_f=alpha, decay=decay, **fields)
    for t in range(1, 2 * steps, 3):
        assert 0 <= rate(t) <= PEAK * (1 + 1e-12)


@pytest.mark.parametrize("warmup", [20, "20%", 0.2, "20k tokens", "20 steps", "0.02M tokens"])
def test_warmup_reads_steps_fractions_and_tokens_alike(warmup):
    rate = ours("wsd", warmup=warmup)
    assert rate(10) == pytest.approx(PEAK / 2)
    assert rate(20) == PEAK


def test_without_warmup_the_first_step_is_at_the_peak():
    assert ours("constant_with_warmup", warmup=0)(1) == PEAK
    assert ours("wsd", warmup=0)(1) == PEAK


def test_warmup_as_long_as_the_trial_is_allowed():
    rate = ours("cosine_with_warmup", warmup=STEPS)
    assert rate(STEPS) == pytest.approx(0.1 * PEAK)
    assert rate(STEPS - 1) > 0.9 * PEAK


@pytest.mark.parametrize(
    ("name", "fields", "field"),
    [
        ("cosin", {}, "schedule.name"),
        ("inverse_sqrt_with_warmup", {"warmup": 0}, "schedule.warmup"),
        ("power_lr", {"warmup": 0}, "schedule.warmup"),
        ("wsd", {"warmup": 60, "decay": 60}, "schedule.decay"),
        ("wsds", {"periods": [50, 40]}, "schedule.periods"),
        ("wsds", {"periods": [50, 60], "decay": 20}, "schedule.decay"),
        ("wsds", {"period_lr_multipliers": [1.0]}, "schedule.period_lr_multipliers"),
        ("exponential", {"alpha_f": 0.0}, "schedule.lr_min"),
        ("composable", {"stages": None}, "schedule.stages"),
        ("composable", {"stages": [{"duration": 5}]}, "schedule.stages[0].end_lr"),
        ("composable", {"stages": [{"duration": 5, "ende": 1.0}]}, "schedule.stages[0].ende"),
        (
            "composable",
            {"stages": [{"duration": 5, "end_lr": 1.0, "end_lr_fraction": 1.0}]},
            "schedule.stages[0].end_lr",
        ),
        ("sequential", {"stages": [{"name": "constant"}] * 2}, "schedule.stages[0].duration"),
        ("constant", {"override_decay": {"start": 3}}, "schedule.override_decay"),
        ("no.such.module:thing", {}, "schedule.name"),
        ("math:thing", {}, "schedule.name"),
    ],
)
def test_what_makes_no_sense_is_refused_by_field(name, fields, field):
    with pytest.raises(ConfigError) as caught:
        ours(name, **fields)
    assert caught.value.field.startswith(field)


CONF = Path(__file__).parents[2] / "conf" / "schedule"


@pytest.mark.parametrize("option", sorted(p.stem for p in CONF.glob("*.yaml")))
def test_every_option_of_the_configuration_gives_a_rate_at_each_step(option):
    section = yaml.safe_load((CONF / f"{option}.yaml").read_text())["schedule"]
    config = build(ScheduleConfig, section, "schedule")
    rate = build_schedule(config, peak=PEAK, steps=37, tokens_per_step=1000)
    assert all(0 <= rate(t) <= PEAK for t in range(1, 38))
    assert max(rate(t) for t in range(1, 38)) > 0


def test_every_schedule_is_an_option_of_the_configuration():
    assert {p.stem for p in CONF.glob("*.yaml")} == set(SCHEDULES)
