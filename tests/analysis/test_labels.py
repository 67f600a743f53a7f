from __future__ import annotations

import itertools

import numpy as np
import pytest

from ablate.analysis.plots.labels import _SIDES, _box, _meet, _pixels, place_labels


@pytest.mark.parametrize("arms", [2, 10, 40])
@pytest.mark.parametrize("same_cost", [False, True])
def test_no_name_lies_over_another(arms: int, same_cost: bool) -> None:
    draw = np.random.default_rng(arms)
    x = [6e9] * arms if same_cost else draw.normal(size=arms).tolist()
    y = draw.normal(size=arms).tolist()
    names = [f"arm-number-{i}" for i in range(arms)]
    shown, sides = place_labels(x, y, names)
    assert len(shown) == len(sides) == arms
    across, up = _pixels(x, 760.0), _pixels(y, 320.0)
    boxes = [_box(across[i], up[i], shown[i], _SIDES[sides[i]]) for i in range(arms) if shown[i]]
    assert not any(_meet(a, b) for a, b in itertools.combinations(boxes, 2))
    assert len(boxes) >= min(arms, 10)
    assert all(name in ("", names[i]) for i, name in enumerate(shown))


def test_a_point_alone_is_named_above_it() -> None:
    assert place_labels([1.0], [2.0], ["base"]) == (["base"], ["top center"])
    assert place_labels([], [], []) == ([], [])


def test_a_long_name_at_the_edge_stands_inside_the_plot() -> None:
    names = ["layer_norm_type-lab.norms-HalfNorm", "base", "rate-name-lab.rates-warm_then_root"]
    x, y = [1.0, 2.0, 3.0], [1.0, 3.0, 2.0]
    shown, sides = place_labels(x, y, names)
    assert shown == names
    for at, up, name, side in zip(_pixels(x, 760.0), _pixels(y, 320.0), shown, sides, strict=True):
        left, _, right, _ = _box(at, up, name, _SIDES[side])
        assert left >= 0, name
        assert right <= 760, name
