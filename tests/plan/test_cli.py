"""`ablate plan` on a terminal, in a pipe, and as JSON."""

from __future__ import annotations

import json
import re
from io import StringIO

import pytest

from ablate.cli import launch
from ablate.cli import plan as cli
from ablate.cli.plan_view import amount, plan_view
from ablate.errors import AblateError
from ablate.plan import plan_sweep

FIRST = ("model.eos_token_id=0", "model.pad_token_id=0")


@pytest.fixture
def sweep(write_sweep, tmp_path, monkeypatch) -> str:
    monkeypatch.chdir(tmp_path)
    factors = {
        "activation": ["activation=swiglu"],
        "norm": ["norm=rms"],
        "position": ["position=rope"],
    }
    return "sweep=" + write_sweep(
        design="ladder", factors=factors, match="params", budget={"tokens": "1M"}
    )


@pytest.mark.parametrize(
    ("where", "words", "said"),
    [
        ("text", ["data.tokenizer=bpe"], "model.vocab_size=257: is too small"),
        ("token files", ["data.tokenizer=bpe"], ""),
        (
            "corpus",
            ["data.tokenizer=bpe"],
            "model.vocab_size=257: is too small: data.tokenizer=bpe makes",
        ),
        (
            "corpus",
            ["data.tokenizer=bpe", "model.vocab_size=4096"],
            "model.eos_token_id=256: ends no",
        ),
        ("corpus", ["data=kjv_gpt2", "model.vocab_size=300", *FIRST], "Set model.vocab_size=50257"),
        ("corpus", ["model.vocab_size=256", *FIRST], "data.tokenizer=bytes makes 257 tokens"),
    ],
)
def test_a_vocabulary_that_the_model_has_not_is_refused(
    sweep, tmp_path, where: str, words: list[str], said: str
) -> None:
    (tmp_path / "x.txt").write_text("In the beginning. " * 100)
    (tmp_path / "x.bin").write_bytes(b"\x01\x00" * 9999)
    if where != "corpus":
        words = [*words, f"data.path={tmp_path / ('x.txt' if where == 'text' else 'x.bin')}"]
    if where == "token files":  # whatever they hold
        assert cli.main([sweep, *words, "--json"]) == 0
        return
    with pytest.raises(AblateError, match=re.escape(said)):
        cli.main([sweep, *words])


def test_json_is_one_object_with_the_promised_keys(sweep, capsys) -> None:
    assert cli.main([sweep, "--json"]) == 0
    out = capsys.readouterr()
    shown = json.loads(out.out)
    assert out.err == ""
    assert {"arms", "trials", "smallest_detectable_effect"} <= shown.keys()
    assert shown["trials"] == 12
    for arm in shown["arms"]:
        assert {"arm", "overrides", "diff", "parameters", "flops_per_token"} <= arm.keys()


def test_a_pipe_gets_plain_text_with_nothing_cut_off(sweep, capsys) -> None:
    assert cli.main(["sweep.seeds=2", sweep]) == 0
    text = capsys.readouterr().out
    assert "\x1b" not in text
    assert "…" not in text
    for word in (
        "baseline",
        "+activation",
        "+norm",
        "+position",
        "gelu_tanh→swiglu",
        "mlp_hidden_size",
        "8 trials",
    ):
        assert word in text
    assert "Smallest detectable effect" in text


@pytest.mark.parametrize("width", [30, 60, 80, 120, 200])
def test_every_arm_and_figure_is_readable_at_any_width(sweep, width, tmp_path) -> None:
    from rich.console import Console

    plan = plan_sweep([sweep], cwd=tmp_path)
    console = Console(width=width, record=True, color_system=None, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(plan_view(plan, width))
    text = console.export_text()
    assert max(len(line) for line in text.splitlines()) <= width
    solid = re.sub(r"\s+", "", text)
    for arm in plan.arms:
        assert arm.name in solid
        assert f"{arm.parameters:,}" in solid


@pytest.mark.parametrize("width", [80, 200])
def test_each_rung_of_a_ladder_names_the_rung_that_it_is_compared_with(
    sweep, width, tmp_path
) -> None:
    """In the list beside the arm's own name, in the table in the arm's own row."""
    from rich.console import Console

    plan = plan_sweep([sweep], cwd=tmp_path)
    references = {arm.name: arm.reference for arm in plan.arms}
    assert references == {
        "baseline": None,
        "+activation-swiglu": "baseline",
        "+norm-rms": "+activation-swiglu",
        "+position-rope": "+norm-rms",
    }
    console = Console(width=width, record=True, color_system=None, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(plan_view(plan, width))
    lines = console.export_text().splitlines()
    for name, reference in references.items():
        (own,) = (line.split() for line in lines if line.split()[:1] == [name])
        if width == 200:
            assert own[1] == (reference or "–")
        else:
            named = reference not in (None, "baseline")  # the head says it of the others
            assert own == ([name, "against", reference] if named else [name])
    head = "Each against baseline, where no other arm is named."
    assert lines.count(head) == (width == 80)


@pytest.mark.parametrize("width", [*range(96, 200, 8)])
def test_a_module_of_the_users_own_squeezes_no_column(
    write_sweep, width, tmp_path, monkeypatch
) -> None:
    """A wider terminal never takes more lines, and no header or figure is broken. What its code's
    digest is says nothing beside its name."""
    from rich.console import Console

    code = "from ablate.model.norm import RMSNorm\n\n\nclass HalfNorm(RMSNorm):\n    pass\n"
    (tmp_path / "norms_of_the_lab.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    own = "model.layer_norm_type=norms_of_the_lab:HalfNorm"
    name = write_sweep(design="one_factor", factors={"norm": [own]}, budget={"steps": 20})
    plan = plan_sweep([f"sweep={name}"], cwd=tmp_path)
    shown = {}
    for columns in (80, width):
        console = Console(width=columns, record=True, color_system=None, file=StringIO())
        console.print(plan_view(plan, columns))
        shown[columns] = console.export_text()
    assert len(shown[width].splitlines()) <= len(shown[80].splitlines()) + 3  # head and rules
    assert "sources" not in shown[width]
    words = shown[width].split()
    assert "layer_norm_type-norms_of_the_lab-HalfNorm" in words
    if "FLOPs/token" in words:  # a table
        assert {"arm", "parameters", "trials", "tokens", "124,736", "61.4k"} <= set(words)


def test_help_has_examples(capsys) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.main(["-h"])
    assert stop.value.code == 0
    assert "ablate plan sweep=hello --check" in capsys.readouterr().out


@pytest.mark.parametrize(
    "argv",
    [[], ["size=tiny"], ["sweep=nothing"], ["sweep=null"], ["sweep"], ["sweep=hello", "seed"]],
)
def test_a_request_without_a_sweep_is_refused_in_one_paragraph(argv, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(AblateError) as error:
        cli.main(argv)
    assert error.value.exit_code == 2
    assert "\n" not in str(error.value)


def test_amounts_are_short() -> None:
    assert [amount(x) for x in (3, 999, 1234, 2e6, 4.236e12, 1e18)] == [
        "3",
        "999",
        "1.23k",
        "2M",
        "4.24T",
        "1E",
    ]


def test_the_alias_structure_is_printed(write_sweep, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    factors = {
        "activation": ["activation=swiglu"],
        "norm": ["norm=rms"],
        "qk_norm": ["qk_norm=on"],
        "bias": ["bias=none"],
    }
    name = write_sweep(design="fractional", factors=factors)
    assert cli.main([f"sweep={name}"]) == 0
    text = capsys.readouterr().out
    assert "Resolution IV: 8 of 16 combinations (1/2)" in text
    assert "activation x norm + qk_norm x bias" in text
    assert cli.main([f"sweep={name}", "sweep.resolution=3", "--json"]) == 0
    info = json.loads(capsys.readouterr().out)["design_info"]
    assert info["kind"] == "fractional"
    assert cli.main([f"sweep={name}", "design=ladder", "sweep.orders=3"]) == 0
    assert "3 orders, drawn with seed 0" in capsys.readouterr().out


def test_a_launch_says_which_budget_it_does_not_take(sweep, capsys) -> None:
    assert launch.main([sweep, "sweep.budget.steps=40", "--dry-run"]) == 0
    out = capsys.readouterr()
    assert "Note: sweep.budget.steps=40 stands in place of the sweep's own" in out.err
    assert "Note" not in out.out


def test_a_plan_of_a_hundred_arms_is_a_few_lines_an_arm(plan, hundred_arms, capsys) -> None:
    made = plan(design="grid", factors=hundred_arms, match="params")
    assert len(made.arms) == 120
    assert cli.main(["sweep=mine"]) == 0
    lines = capsys.readouterr().out.splitlines()
    first = lines.index("baseline")
    assert lines.index("", first) - first < 4 * len(made.arms), "head and foot aside"
    assert max(map(len, lines)) <= 80, "in a pipe too"
    names = [line.split()[0] for line in lines if line and line.split()]
    for arm in made.arms:
        assert arm.name in names, "whole, in a line of its own"
    solid = re.sub(r"\s+", "", "".join(lines))
    assert {arm.reference for arm in made.arms[1:]} == {"baseline"}
    said = [line for line in lines if "against" in line]
    assert said == ["Each against baseline, where no other arm is named."], "once for all arms"
    for arm in made.arms[1:]:
        field = next(f for f in arm.change if f not in arm.resized)
        assert field.removeprefix("model.") in solid
    paired = [line for line in lines if line.startswith("Paired with its reference")]
    counts = [int(re.search(r"(\d+) of 120 arms", line)[1]) for line in paired]  # type: ignore[index]
    assert sum(counts) == sum(bool(arm.paired) for arm in made.arms) > 60
