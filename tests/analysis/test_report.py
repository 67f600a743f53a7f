"""`ablate report`: what it prints and what it writes."""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import studies
from demos import ladder
from rich.console import Console

from ablate.analysis import judge, load
from ablate.analysis.display import explain, level
from ablate.analysis.forest import effects_figure
from ablate.analysis.latex import latex
from ablate.analysis.markdown import verdict_columns
from ablate.analysis.page import verdict_table
from ablate.analysis.terminal import show
from ablate.cli.report import main
from ablate.errors import AblateError, DataError, StudyError
from ablate.rundir import StudyDir

GOLDEN = Path(__file__).parent / "golden"
SECTIONS = ("equivalents", "stability", "costs", "pareto")
FILES = {
    "index.html",
    "report.md",
    "effects.tex",
    *(f"{n}.{s}" for n in ("effects", "trials", "curves", *SECTIONS) for s in ("csv", "parquet")),
    *(f"{n}.tex" for n in SECTIONS),
    *(f"{n}.{s}" for n in ("effects", "curves") for s in ("svg", "png", "pdf")),
}


def write(path: Path) -> StudyDir:
    truth = {"base": 0, "rope": -0.03, "rms": 0.0, "qk_norm": 0.02, "bias": 0.004}
    values: dict[str, dict[int, float | str]] = dict(studies.values(truth, sd=0.0025))
    values["qk_norm"][1] = "diverged"
    return studies.write_study(path, values)


@pytest.fixture
def study(tmp_path: Path) -> StudyDir:
    return write(tmp_path / "runs" / "hello")


@pytest.fixture
def no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests of words: drawing takes most of a report's time."""
    monkeypatch.setattr("ablate.analysis.publish.draw", lambda *_: None)


@pytest.fixture(scope="module")
def two_processes(
    tmp_path_factory: pytest.TempPathFactory,
) -> list[tuple[dict[str, str], set[str]]]:
    """The files (as hashes) and the imported packages of two runs, with different hash seeds, time
    zones and languages.
    """
    root = tmp_path_factory.mktemp("two")
    study = write(root / "hello")
    code = (
        "import sys; from ablate.cli.report import main; code = main(sys.argv[1:]); "
        "print(' '.join({m.partition('.')[0] for m in sys.modules}), file=sys.stderr); "
        "sys.exit(code)"
    )
    runs = []
    zones = {"1": ("UTC", "C"), "2": ("Pacific/Chatham", "de_DE.UTF-8")}
    for seed, (zone, language) in zones.items():
        folder = root / seed
        command = [sys.executable, "-c", code, str(study.path), "--json", "--out", str(folder)]
        environment = os.environ | {"PYTHONHASHSEED": seed, "TZ": zone}
        environment |= {"LANG": language, "LC_ALL": language}
        done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
        files = {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in folder.iterdir()}
        runs.append((files, set(done.stderr.split())))
    return runs


def printed(study: StudyDir, width: int) -> str:
    file = io.StringIO()
    show(judge(load(study.path)), Console(file=file, width=width, highlight=False))
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines()) + "\n"


@pytest.mark.parametrize("width", [60, 100])
def test_the_terminal_table_is_the_golden_one_and_fits(study: StudyDir, width: int) -> None:
    text, golden = printed(study, width), GOLDEN / f"terminal-{width}.txt"
    if os.environ.get("ABLATE_GOLDEN"):
        golden.write_text(text, encoding="utf-8")
    assert text == golden.read_text(encoding="utf-8")
    assert max(map(len, text.splitlines())) <= width
    assert "\x1b" not in text


@pytest.mark.usefixtures("no_pictures")
@pytest.mark.parametrize("width", [50, 120])
def test_a_reference_that_is_not_the_row_above_is_named_at_any_width(
    tmp_path: Path, width: int
) -> None:
    study = ladder(tmp_path / "orders")  # base, +norm, +rope and full, of two orders
    text = printed(study, width)
    assert "previous rung" not in text
    assert "Of 3 arms against their references:" in " ".join(text.split())
    if width < 100:
        assert "Against base: +norm, +rope.\nAgainst +norm: full." in text
    else:
        assert re.search(r"^ \+rope +base ", text, re.M)
        assert re.search(r"^ full +\+norm ", text, re.M)
    row = verdict_table(judge(load(study.path))).partition("<td>+rope")[2]
    assert row.startswith('<div class="narrow soft">against base</div>')
    manifest = study.manifest()
    for arm, reference in zip(manifest["arms"], (None, "base", "+norm", "+rope"), strict=True):
        arm["reference"] = reference
    study.write_manifest(manifest)
    assert "against the previous rung:" in " ".join(printed(study, width).split())


def test_json_is_one_object_with_the_promised_keys(
    study: StudyDir, capsys: pytest.CaptureFixture
) -> None:
    assert main([str(study.path), "--json"]) == 0
    out = json.loads(capsys.readouterr().out)
    assert {"arms", "metric", "baseline"} <= out.keys()
    keys = {"arm", "seeds", "mean", "difference", "low", "high", "p", "verdict"}
    assert all(keys <= arm.keys() for arm in out["arms"])
    by_arm = {a["arm"]: a for a in out["arms"]}
    assert by_arm["base"]["difference"] is None
    assert by_arm["rope"]["verdict"] == "better"
    assert (by_arm["qk_norm"]["diverged"], by_arm["qk_norm"]["verdict"]) == (1, "worse")


def test_pain_40_one_command_writes_every_file_of_a_report_and_says_where(
    study: StudyDir, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(study.path.parent.parent)
    assert main(["hello"]) == 0
    assert "Report: runs/hello/report/index.html" in capsys.readouterr().out.replace("\n", "")
    assert {p.name for p in study.report_path.iterdir()} == FILES
    effects = pd.read_parquet(study.report_path / "effects.parquet")
    assert effects["verdict"].tolist() == judge(load(study.path)).table["verdict"].tolist()


def test_two_runs_write_the_same_bytes(
    two_processes: list[tuple[dict[str, str], set[str]]],
) -> None:
    (one, _), (two, _) = two_processes
    assert one.keys() == FILES
    assert one == two


def test_it_never_imports_torch_or_hydra(
    two_processes: list[tuple[dict[str, str], set[str]]],
) -> None:
    imported = two_processes[0][1]
    assert "pandas" in imported
    assert not imported & {"torch", "hydra", "wandb", "submitit"}


@pytest.mark.usefixtures("no_pictures")
def test_several_studies_are_reported_each(study: StudyDir, capsys: pytest.CaptureFixture) -> None:
    truth = studies.values({"base": 0, "rope": -0.031}, rng=5)
    other = studies.write_study(study.path.parent / "other", truth)
    out = study.path.parent / "out"
    assert main([str(study.path), str(other.path), "--json", "--out", str(out)]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert [o["study"] for o in printed["studies"]] == ["hello", "other"]
    assert (out / "other" / "index.html").exists()
    # Side by side stands what both changed, and nothing else.
    rows = printed["comparison"]
    assert [(r["study"], r["arm"]) for r in rows] == [("hello", "rope"), ("other", "rope")]
    low, high = sorted(r["difference"] for r in rows)
    assert low <= rows[0]["pooled"] <= high
    assert (out / "comparison.md").read_text().count("model.rope: false → true") == 2


def test_refusals_are_errors_with_a_remedy(study: StudyDir, tmp_path: Path) -> None:
    with pytest.raises(StudyError, match="no study 'hallo'"):
        main(["hallo", f"runs_dir={study.path.parent}"])
    with pytest.raises(AblateError, match="ablate list"):
        main([])


@pytest.mark.usefixtures("no_pictures")
def test_exploratory_results_say_so_first_and_replace_no_confirmatory_report(
    study: StudyDir, capsys: pytest.CaptureFixture
) -> None:
    main([str(study.path), "--metric", "val/bpb"])
    confirmatory = (study.report_path / "index.html").read_bytes()
    capsys.readouterr()
    main([str(study.path), "--metric", "val/loss"])
    out = capsys.readouterr().out
    assert out.index("EXPLORATORY: metric is val/loss") < out.index("verdict")
    folder = study.path / "report-val_loss"
    assert f"Report: {folder / 'index.html'} (of another metric than the frozen one" in out
    assert "Exploratory" in (folder / "index.html").read_text(encoding="utf-8")
    assert "**Exploratory**" in (folder / "report.md").read_text(encoding="utf-8")
    assert (study.report_path / "index.html").read_bytes() == confirmatory


@pytest.mark.usefixtures("no_pictures")
def test_a_report_of_an_unfinished_study_replaces_no_confirmatory_one(
    study: StudyDir, capsys: pytest.CaptureFixture
) -> None:
    main([str(study.path), "--partial"])  # it is finished: the confirmatory report
    confirmatory = (study.report_path / "index.html").read_bytes()
    manifest = study.manifest()
    more = manifest["trials"][0] | {"id": "planned-s9-00000000", "seed": 9, "fingerprint": "f" * 64}
    study.write_manifest(manifest | {"trials": [*manifest["trials"], more]})
    capsys.readouterr()
    main([str(study.path), "--partial"])
    folder = study.path / "report-partial"
    assert f"Report: {folder / 'index.html'} (of an unfinished study; " in capsys.readouterr().out
    assert "Exploratory" in (folder / "index.html").read_text(encoding="utf-8")
    main([str(study.path), "--partial", "--metric", "val/loss"])
    assert (study.path / "report-val_loss-partial" / "index.html").is_file()
    assert (study.report_path / "index.html").read_bytes() == confirmatory


@pytest.mark.usefixtures("no_pictures")
def test_a_report_of_an_earlier_revision_has_a_folder_of_its_own(
    study: StudyDir, capsys: pytest.CaptureFixture
) -> None:
    manifest = study.manifest()
    seeds = len({t["seed"] for t in manifest["trials"]})
    history = [
        {"looks": [seeds - 1]},
        {"looks": [seeds - 1, seeds], "overrides": ["sweep.seeds=9"]},
    ]
    study.write_manifest(manifest | {"revision": 2, "history": history})
    main([str(study.path), "--revision", "1"])
    folder = study.path / "report-revision-1"
    assert f"Report: {folder / 'index.html'} (of revision 1 of 2; " in capsys.readouterr().out
    assert not study.report_path.exists()
    assert len(set(pd.read_csv(folder / "trials.csv")["seed"])) == seeds - 1


def test_a_folder_that_cannot_be_written_is_named_before_anything_is_printed(
    study: StudyDir, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refused(**_: object) -> None:  # a superuser may write anywhere
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("tempfile.mkdtemp", refused)
    with pytest.raises(AblateError, match=r"^--out=.*/report: cannot be .*denied\).*--out DIR"):
        main([str(study.path)])
    monkeypatch.undo()
    (tmp_path / "file").touch()
    with pytest.raises(AblateError, match=r"^--out=.*file/x: cannot be written .*--out DIR"):
        main([str(study.path), "--out", str(tmp_path / "file" / "x")])
    assert not list(study.path.rglob(".ablate-*")), "nothing is left of what was tried"
    assert capsys.readouterr().out == ""


def test_latex_escapes_what_means_something_to_it(study: StudyDir) -> None:
    text = latex(judge(load(study.path)))
    assert r"qk\_norm" in text
    assert r"95 \% interval" in text
    assert text.count(r"\begin{table}") == text.count(r"\end{table}") == 1


@pytest.mark.usefixtures("no_pictures")
def test_a_table_from_elsewhere_is_reported_by_the_verb_and_refused_with_a_remedy(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    rows = [
        {"arm": a, "seed": s, "step": t, "val/loss": 3.0 - 0.2 * (a == "b") - 0.1 * t + 0.01 * s}
        for a in "ab"
        for s in range(3)
        for t in (1, 2)
    ]
    table = tmp_path / "curves.csv"
    pd.DataFrame(rows).to_csv(table, index=False)
    assert main([str(table), "--metric", "val/loss"]) == 0
    assert "EXPLORATORY" in capsys.readouterr().out
    assert (tmp_path / "curves-report" / "index.html").exists()
    assert main([str(table), "--metric", "val/loss", "--baseline", "b", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["baseline"], found["arms"][1]["verdict"]) == ("b", "worse")
    with pytest.raises(DataError, match=r"no column 'val/bpb'.*--metric"):
        main([str(table)])
    with pytest.raises(AblateError, match="no file"):
        main([str(tmp_path / "other.csv")])
    table.rename(tmp_path / "curves.txt")
    with pytest.raises(AblateError, match=r"no study.*arm, seed, step"):
        main([str(tmp_path / "curves.txt")])


@pytest.mark.usefixtures("no_pictures")
def test_an_absurd_value_is_not_printed_digit_by_digit(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    values = studies.values({"base": 0, "rope": -0.03})
    values["rope"][1] = 1e308
    study = studies.write_study(tmp_path / "s", values)
    main([str(study.path)])
    written = (study.report_path / n for n in ("report.md", "effects.csv", "index.html"))
    for text in (capsys.readouterr().out, *(p.read_text(encoding="utf-8") for p in written)):
        assert not re.search(r"\d{100}", text)


@pytest.mark.usefixtures("no_pictures")
@pytest.mark.parametrize("lost", [(0, 1), (0,)])
def test_a_baseline_that_ended_in_nan_is_counted_and_not_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture, lost: tuple[int, ...]
) -> None:
    rows = [
        {"arm": a, "seed": s, "step": t, "val/bpb": 2.0 - 0.1 * t - 0.01 * s - 0.05 * (a == "b")}
        for a in "ab"
        for s in range(2)
        for t in (1, 2)
    ]
    for row in rows:
        if row["arm"] == "a" and row["seed"] in lost and row["step"] == 2:
            row["val/bpb"] = float("nan")
    pd.DataFrame(rows).to_csv(tmp_path / "curves.csv", index=False)
    assert main([str(tmp_path / "curves.csv"), "--json"]) == 0
    arm = json.loads(capsys.readouterr().out)["arms"][1]
    assert arm["verdict"] == ("better" if len(lost) == 2 else "undecided")
    assert f"reference {len(lost)}/2" in arm["note"]
    main([str(tmp_path / "curves.csv")])
    said = " ".join(capsys.readouterr().out.split())
    assert "cannot be estimated from the trials with a value" in said
    assert "from one seed" not in said


def test_the_level_of_an_early_look_is_rounded(study: StudyDir) -> None:
    j = judge(load(study.path))
    early = replace(j, rule=replace(j.rule, alpha=0.00447712345))
    assert "99.55 % interval" in verdict_columns(early).values()
    assert "alpha 0.004477;" in explain(early)
    assert "99.55 % [" in json.dumps(effects_figure(early), default=str)
    assert "95 % interval" in verdict_columns(j).values()
    tiny = replace(j, rule=replace(j.rule, alpha=1e-6))
    assert level(tiny) == "99.9999 %"
