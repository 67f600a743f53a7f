"""A claim is checked before the runs, and frozen with every field filled."""

from __future__ import annotations

from typing import Any

import pytest

from ablate.cli.plan_view import plan_view
from ablate.errors import ConfigError

FACTORS = {"norm": ["norm=rms"], "bias": ["bias=none"]}
CLAIM = {"source": "an article", "statement": "15 % lower perplexity", "of": "norm=rms",
         "metric": "val/perplexity", "relative": -0.15}  # fmt: skip


def test_arms_are_found_by_what_they_change_and_the_reference_is_the_baseline(plan) -> None:
    (frozen,) = plan(factors=FACTORS, claim=CLAIM).manifest()["claim"]
    assert (frozen["of"], frozen["against"]) == ("norm-rms", "baseline")
    assert (frozen["direction"], frozen["rates"]) == ("lower", "best")
    assert frozen["margin"] == pytest.approx(0.03)
    named = {**CLAIM, "of": "bias-none", "against": "model=gpt2"}
    (frozen,) = plan(factors=FACTORS, claim=[named]).claim
    assert (frozen["of"], frozen["against"]) == ("bias-none", "baseline")


def test_a_claim_may_be_about_one_of_the_learning_rates(plan) -> None:
    at = {**CLAIM, "rates": 1e-2}
    (frozen,) = plan(factors=FACTORS, claim=at, lr=[1e-3, 1e-2]).claim
    assert frozen["rates"] == 1e-2
    for rates in ([1e-3, 2e-2], None):
        with pytest.raises(ConfigError, match=r"sweep.claim.rates=0.01: is none of the learning"):
            plan(factors=FACTORS, claim=at, lr=rates)


def test_a_claim_about_the_metric_that_decides_takes_its_margin(plan) -> None:
    stated = {**CLAIM, "metric": None, "relative": None, "direction": "lower"}
    (frozen,) = plan(factors=FACTORS, claim=stated, decide={"margin": 0.02}).claim
    assert (frozen["metric"], frozen["margin"]) == ("val/bpb", 0.02)


def test_the_plan_shows_it(plan) -> None:
    from rich.console import Console

    console = Console(width=200, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(plan_view(plan(factors=FACTORS, claim=CLAIM), 200))
    text = console.export_text()
    assert (
        "Tests the claim “15 % lower perplexity”: val/perplexity of norm-rms lower by 15 %" in text
    )


@pytest.mark.parametrize(
    ("change", "field", "said"),
    [
        ({"of": "position=rope"}, "of", "fits no arm"),
        ({"of": "baseline"}, "of", "has no reference"),
        ({"against": "norm-rms"}, "against", "the same arm"),
        ({"metric": "robust/shift_loss"}, "metric", "evaluate.shifted_data is null"),
        ({"absolute": -1.0}, "absolute", "contradicts relative"),
        ({"relative": 0.0}, "relative", "other than 0"),
        ({"relative": None}, "direction", "says nothing without a size"),
        ({"direction": "higher"}, "direction", "contradicts relative"),
        ({"direction": "no_worse"}, "relative", "greater than 0"),
        ({"metric": "val/perplexty"}, "metric", "Did you mean val/perplexity"),
        ({"untestable": "no"}, "nearest", "is missing"),
        ({"says": "x"}, "says", "there is no such field"),
        ({"statement": " "}, "statement", "is empty"),
    ],
)
def test_what_makes_no_sense_is_refused_by_field(
    plan, change: dict[str, Any], field: str, said: str
) -> None:
    with pytest.raises(ConfigError, match=said) as raised:
        plan(factors=FACTORS, claim={**CLAIM, **change})
    assert raised.value.field == f"sweep.claim.{field}"


@pytest.mark.parametrize("written", ["RoPE helps", ["RoPE helps"], 3])
def test_a_claim_in_words_alone_is_told_where_the_words_go(plan, written: object) -> None:
    with pytest.raises(ConfigError, match=r"list of mappings.*`statement`, beside `source`, `of`"):
        plan(factors=FACTORS, claim=written)
