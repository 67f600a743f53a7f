"""Error rates and coverage by simulation: one command prints the table.

    python -m benchmarks.honesty             2,000 A/A studies, 1,000 factorials, ... (minutes)
    python -m benchmarks.honesty --quick     a tenth of it

The noise of a simulated trial is a block of its seed (sd 0.02), and its own (sd 0.002) with the
tails of Student's t with 6 degrees of freedom. `python -m benchmarks.aa` adds real trials.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd

from ablate.analysis.bracket import choose_by_seed
from ablate.analysis.effects import effects
from ablate.analysis.estimate import fit
from ablate.analysis.rule import Rule
from ablate.analysis.tables.attribution import attribution
from ablate.analysis.tables.factorial import factor_effects
from ablate.analysis.tables.learning_rates import sensitivity
from ablate.analysis.tables.scaling import fit_scaling, gaps
from ablate.design.ladder import FEWEST_ORDERS

SD, BLOCK, ARMS, SEEDS = 0.002, 0.02, 5, 3
NAMES = ["base", *(f"a{i}" for i in range(1, ARMS))]
STAR: dict[str, str | None] = {"base": None, **dict.fromkeys(NAMES[1:], "base")}
LADDER: dict[str, str | None] = {"base": None, **dict(zip(NAMES[1:], NAMES, strict=False))}


def noise(rng: np.random.Generator, size: int) -> np.ndarray:
    return SD * rng.standard_t(6, size) / np.sqrt(6 / 4)


def study(rng: np.random.Generator, arms: Sequence[str], seeds: int) -> pd.DataFrame:
    frame = pd.DataFrame(itertools.product(arms, range(seeds)), columns=["arm", "seed"])
    block = rng.normal(0, BLOCK, seeds)[frame["seed"]]
    return frame.assign(value=2.0 + block + noise(rng, len(frame)))


def row(what: str, count: float, of: int, low: float, high: float) -> str:
    share = count / of
    said = "pass" if low <= share <= high else "FAIL"
    bar = f"{100 * low:g}-{100 * high:g} %"
    return f"{what:<56} {count:7.0f} of {of:<6} {100 * share:6.2f} %  (bar {bar})  {said}"


def false_verdicts(n: int, correction: str, references: dict[str, str | None]) -> list[str]:
    """A/A: nothing differs. Also the coverage of the intervals of each arm."""
    rule, rng = Rule(correction=correction, smallest_effect=0.0), np.random.default_rng(1)
    wrong = covered = equal = together = 0
    for _ in range(n):
        table = effects(study(rng, NAMES, SEEDS), references, rule)[0].iloc[1:]
        wrong += table["verdict"].isin(["better", "worse"]).any()
        covered += ((table["single_low"] < 0) & (table["single_high"] > 0)).sum()
        equal += ((table["equivalent_low"] < 0) & (table["equivalent_high"] > 0)).sum()
        together += ((table["low"] < 0) & (table["high"] > 0)).all()
    kind = "star" if references is STAR else "ladder"
    each = n * (ARMS - 1)
    lines = [row(f"A/A, {correction}, {kind}: any false verdict", wrong, n, 0, 126 / 2000)]
    if correction == "dunnett":
        lines += [
            row(f"  all simultaneous intervals cover ({kind})", together, n, 0.93, 0.97),
            row(f"  each arm's own 95 % interval ({kind})", covered, each, 0.93, 0.97),
            row(f"  each arm's 90 % interval of TOST ({kind})", equal, each, 0.88, 0.92),
        ]
    return lines


def looks(n: int) -> list[str]:
    """A/A studies that grow as declared, and stop at the first better or worse."""
    from ablate.plan.spending import alphas_at_looks

    seeds, rng, wrong = (3, 6, 9), np.random.default_rng(2), 0
    levels = alphas_at_looks(0.05, seeds, comparisons=ARMS - 1)
    for _ in range(n):
        data = study(rng, NAMES, seeds[-1])
        wrong += any(
            effects(data[data["seed"] < k], STAR, Rule(alpha=level, smallest_effect=0.0))[0][
                "verdict"
            ]
            .isin(["better", "worse"])
            .any()
            for k, level in zip(seeds, levels, strict=True)
        )
    return [row("A/A at three O'Brien-Fleming looks: any false verdict", wrong, n, 0, 126 / 2000)]


def brackets(n: int) -> list[str]:
    """A/A with a bracket of four rates that are all the same: selection must cost nothing."""
    rng, wrong, bias = np.random.default_rng(3), 0, []
    rule = Rule(smallest_effect=0.0)
    for _ in range(n):
        parts = [study(rng, NAMES[:3], SEEDS).assign(lr=r) for r in (1.0, 2.0, 4.0, 8.0)]
        trials = pd.concat(parts, ignore_index=True).assign(ok=True)
        picks = choose_by_seed(trials, "value")
        judged = trials.merge(picks, on=["arm", "seed", "lr"])
        bias.append(judged["value"].mean() - trials["value"].mean())
        table = effects(judged[["arm", "seed", "value"]], {a: STAR[a] for a in NAMES[:3]}, rule)[0]
        wrong += table["verdict"].isin(["better", "worse"]).any()
    t = float(np.mean(bias) / (np.std(bias) / np.sqrt(n)))
    return [
        row("A/A with learning rates chosen: any false verdict", wrong, n, 0, 126 / 2000),
        f"  bias of the judged mean by the selection: {np.mean(bias):+.1e} (t = {t:+.1f})",
    ]


def factorials(n: int) -> list[str]:
    rng = np.random.default_rng(4)
    names, truth = "abc", {"a": -0.010, "b": 0.006, "c": 0.0, "a × b": 0.008}
    levels, base = {}, "base"
    for bits in itertools.product([0, 1], repeat=3):
        arm = "+".join(f for f, b in zip(names, bits, strict=True) if b) or base
        levels[arm] = {f: "on" if b else "off" for f, b in zip(names, bits, strict=True)}
    # Levels are coded to sum to nothing: the planted interaction is no part of the main effects.
    on = {a: {f: (v == "on") - 0.5 for f, v in own.items()} for a, own in levels.items()}
    mean = {
        a: sum(truth[f] * x[f] for f in names) + truth["a × b"] * x["a"] * x["b"]
        for a, x in on.items()
    }
    hits: dict[str, int] = {}
    for _ in range(n):
        data = study(rng, list(levels), SEEDS)
        data["value"] += data["arm"].map(mean)
        for term in factor_effects(data, levels, base).to_dict("records"):
            planted = truth.get(term["term"], 0.0)
            inside = term["low"] < planted < term["high"]
            hits[term["term"]] = hits.get(term["term"], 0) + inside
    return [row(f"factorial 2^3: interval of {t}", c, n, 0.92, 0.975) for t, c in hits.items()]


def bootstraps(n: int) -> list[str]:
    rng, hit = np.random.default_rng(5), 0
    for _ in range(n):
        table = effects(study(rng, NAMES[:2], 10), {"base": None, "a1": "base"}, Rule())[0]
        hit += table["bootstrap_low"][1] < 0 < table["bootstrap_high"][1]
    return [row("bootstrap of ten seeds", hit, n, 0.93, 0.97)]


def ladders(n: int) -> list[str]:
    """Eight steps, given and reverse order: the sum, and the intervals of the shares."""
    rng, steps = np.random.default_rng(6), list("abcdefgh")
    paths = [steps, steps[::-1]]
    name = lambda on: "+".join(sorted(on)) or "base"  # noqa: E731
    orders = [[name(p[:i]) for i in range(9)] for p in paths]
    arms = list(dict.fromkeys(itertools.chain(*orders)))
    worth = {a: -0.003 * (0 if a == "base" else len(a.split("+"))) for a in arms}
    hit, furthest = 0, 0.0
    for _ in range(n):
        data = study(rng, arms, SEEDS)
        data["value"] += data["arm"].map(worth)
        model = fit(data["arm"], data["seed"], data["value"])
        table = attribution(model, orders, paths)
        gain = dict(zip(model.arms, model.effects, strict=True))
        total = gain[name(steps)] - gain["base"]
        furthest = max(furthest, abs(table["gain"].iloc[:-1].sum() - total))
        hit += (table["low"].iloc[-1] < -0.024) & (table["high"].iloc[-1] > -0.024)
    sums = "pass" if furthest < 1e-12 else "FAIL"
    return [
        row("Shapley ladder of 8: interval of the total", hit, n, 0.93, 0.97),
        f"  steps sum to the total gain: furthest off {furthest:.1e}  {sums}",
    ]


def shares(n: int) -> list[str]:
    """Orders drawn from all of them: the interval of each step's share around its Shapley value,
    which for pairs is half of each. Every pair of steps interacts by as much as a trial's noise, or
    three do by three times that.
    """
    lines = []
    for many, count in itertools.product((True, False), (8, 4, 3, 2)):
        rng, hit, none = np.random.default_rng(9), 0, 0
        for _ in range(n):
            table, truth = ladder_of_draws(rng, count, many)
            inside = (table["low"] < truth) & (table["high"] > truth)
            hit, none = hit + int(inside.sum()), none + int(table["high"].isna().sum())
        kind = "all steps interact" if many else "three strong pairs"
        what = f"  share of each step, {count} orders drawn, {kind}"
        if count >= FEWEST_ORDERS:
            lines.append(row(what, hit, 8 * n, 0.93, 0.97))
        else:
            said = "pass" if none == 8 * n else "FAIL"
            lines.append(f"{what:<56} {none:7.0f} of {8 * n:<6} have no interval: too few  {said}")
    return lines


def ladder_of_draws(
    rng: np.random.Generator, orders: int, many: bool
) -> tuple[pd.DataFrame, np.ndarray]:
    """The shares of the steps, and their Shapley values."""
    steps, pairs = list("abcdefgh"), list(itertools.combinations("abcdefgh", 2))
    name = lambda on: "+".join(sorted(on)) or "base"  # noqa: E731
    strong = set(rng.choice(28, 3, replace=False).tolist())
    sizes = [SD if many else 3 * SD * (i in strong) for i in range(28)]
    pair = dict(zip(pairs, rng.normal(0, 1, 28) * sizes, strict=True))
    paths = [list(rng.permutation(steps)) for _ in range(orders)]
    climbed = [[name(p[:i]) for i in range(9)] for p in paths]
    arms = list(dict.fromkeys(itertools.chain(*climbed)))
    worth = {a: sum(v for p, v in pair.items() if {*p} <= {*a.split("+")}) for a in arms}
    data = study(rng, arms, SEEDS)
    data["value"] += data["arm"].map(worth)
    model = fit(data["arm"], data["seed"], data["value"])
    table = attribution(model, climbed, paths, drawn=True).iloc[:-1]
    truth = {s: sum(v / 2 for p, v in pair.items() if s in p) for s in steps}
    return table, table["step"].map(truth).to_numpy(float)


def scalings(n: int) -> list[str]:
    rng, hit = np.random.default_rng(7), 0
    truth, far = (8.0 - 9.0) * 2.56e9**-0.22, 2.56e9
    for _ in range(n):
        rows = [
            (v, x, 1.6 + a * x**-0.22 + e, s, v)
            for v, a in (("base", 9.0), ("x", 8.0))
            for x in (1e6, 4e6, 1.6e7, 6.4e7, 2.56e8)
            for s, e in enumerate(noise(rng, SEEDS))
        ]
        points = pd.DataFrame(rows, columns=["variant", "x", "value", "seed", "arm"])
        made = fit_scaling(points)[1]
        if made is not None:
            gap = gaps(made, "base", [far]).iloc[0]
            hit += gap["low"] < truth < gap["high"]
    return [row("scaling: interval of the gap at ten times the size", hit, n, 0.93, 0.97)]


def sensitivities(n: int) -> list[str]:
    """The truth of the mean excess includes what the least of five noisy values is below."""
    rng, seeds, rates = np.random.default_rng(8), 5, np.geomspace(1e-3, 1e-1, 5)
    curve = 0.05 * np.log10(rates / 1e-2) ** 2

    def trials(count: int) -> pd.DataFrame:
        frame = pd.DataFrame(itertools.product(range(count), rates), columns=["seed", "lr"])
        value = 2 + np.tile(curve, count) + noise(rng, len(frame))
        return frame.assign(arm="x", ok=True, value=value)

    truth = sensitivity(trials(20_000), "value", cap=9.0)["sensitivity"][0]
    hit = 0
    for _ in range(n):
        made = sensitivity(trials(seeds), "value", cap=9.0).iloc[0]
        hit += made["low"] < truth < made["high"]
    return [row("learning-rate sensitivity of five seeds", hit, n, 0.93, 0.97)]


TABLE: list[tuple[Callable[[int], list[str]], int]] = [
    (lambda n: false_verdicts(n, "holm", STAR), 2000),
    (lambda n: false_verdicts(n, "dunnett", STAR), 2000),
    (lambda n: false_verdicts(n, "dunnett", LADDER), 2000),
    (looks, 2000),
    (brackets, 1000),
    (factorials, 1000),
    (bootstraps, 1000),
    (ladders, 1000),
    (shares, 400),
    (scalings, 1000),
    (sensitivities, 1000),
]


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the simulations")
    options = parser.parse_args(argv)
    for make, n in TABLE:
        print("\n".join(make(n // 10 if options.quick else n)), flush=True)


if __name__ == "__main__":
    main()
