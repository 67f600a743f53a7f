"""`ablate report STUDY...`: tables, verdicts, plots; in the terminal, and as files beside the
study.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ablate.cli.arguments import Parser
from ablate.errors import AblateError
from ablate.rundir import check_writable, find_study

if TYPE_CHECKING:
    from ablate.analysis.judgement import Judgement
    from ablate.rundir import StudyDir

__all__ = ["main"]

EXAMPLES = """\
  ablate report hello
  ablate report runs/hello --json
  ablate report hello --metric val/loss
  ablate report hello --revision 1      as before `ablate extend` added seeds
  ablate report hello hello-2           each, and side by side
  ablate report curves.csv              of trials from elsewhere: columns arm, seed, step, val/bpb
"""
TABLES = (".csv", ".tsv", ".jsonl", ".parquet")


def main(argv: Sequence[str] | None = None) -> int:
    """Reports each study: 0, or 1 where files of a trial are damaged; raises AblateError where a
    study cannot be judged.
    """
    options = _parser().read(sys.argv[1:] if argv is None else argv)
    runs_dir, names = options.runs_dir, []
    for word in options.study:
        if word.startswith("runs_dir="):
            runs_dir = word.partition("=")[2]
        else:
            names.append(word)
    if not names:
        raise AblateError("no study was named. `ablate list` shows the studies on disk.")
    sources = [_source(name, runs_dir) for name in names]
    if options.baseline and not any(isinstance(source, Path) for source in sources):
        raise AblateError("--baseline is for a table of curves; a study has its own.")
    if options.revision is not None and (len(sources) > 1 or isinstance(sources[0], Path)):
        raise AblateError("--revision is of one study: name it alone.")
    reported = [_report(source, options, alone=len(sources) == 1) for source in sources]
    judged, objects = [j for j, _ in reported], [said for _, said in reported]
    if len(judged) == 1:
        printed = objects[0]
    else:
        printed = {"studies": objects, "comparison": _compare(judged, sources[0], options)}
    if options.json:
        print(json.dumps(printed, indent=2))
    from ablate.analysis.judgement import damages

    wrong = [said for j in judged for said in damages(j.frames.trials)]
    for said in wrong:
        print(f"ablate report: {said}", file=sys.stderr)
    return 1 if wrong else 0


def _source(name: str, runs_dir: str) -> StudyDir | Path:
    """A study, or a table of curves."""
    path = Path(name)
    if path.suffix.lower() in TABLES and not path.is_dir():
        if not path.is_file():
            raise AblateError(f"there is no file {path}.")
        return path
    if path.is_file():
        raise AblateError(
            f"{path} is a file and no study. Curves from elsewhere are read from a table with the "
            f"columns arm, seed, step and a metric, named *{', *'.join(TABLES)}."
        )
    return find_study(name, runs_dir)


def _report(
    source: StudyDir | Path, options: argparse.Namespace, *, alone: bool
) -> tuple[Judgement, dict[str, Any]]:
    """The judgement, and the object that --json prints of it."""
    # Imported here: pandas and the figures take a second, and `ablate report --help` should not.
    from ablate.analysis.earlier import at_revision
    from ablate.analysis.foreign import load_csv
    from ablate.analysis.frames import load
    from ablate.analysis.judgement import judge, plain
    from ablate.analysis.material import METRICS, Material
    from ablate.analysis.publish import drawing, write
    from ablate.analysis.registry import sections
    from ablate.analysis.terminal import show

    wanted = {"tokens", *METRICS, *([options.metric] if options.metric else [])}
    if isinstance(source, Path):
        own = {"metric": options.metric} if options.metric else {}
        j = judge(load_csv(source, baseline=options.baseline, **own))
    else:
        frames = load(source.path, columns=sorted(wanted))
        if options.revision is not None:
            frames = at_revision(frames, options.revision)
        j = judge(frames, metric=options.metric, partial=options.partial)
    folder, of = (Path(options.out), "") if options.out is not None else _folder(source, j)
    if options.out is not None and not alone:
        folder /= j.study
    check_writable(folder, "--out", "Name another with `--out DIR`")  # before all is printed
    material = Material(j)
    with drawing(material, folder):
        made = sections(material)
        if not options.json:
            show(j, made=made)
        page = write(material, made, folder)
    beside_it = ""
    if not isinstance(source, Path) and of:
        beside_it = f" (of {of}; {source.report_path} is untouched)"
    print(f"Report: {page}{beside_it}", file=sys.stderr if options.json else sys.stdout)
    rows = next((frame.to_dict("records") for s, frame in made if s.name == "claims"), [])
    claims = [{str(k): plain(v) for k, v in row.items()} for row in rows]
    return j, {**j.to_json(), "claims": claims}


def _folder(source: StudyDir | Path, j: Judgement) -> tuple[Path, str]:
    """Where the files go unless --out says so, into the study or beside the table; and of what
    the report is, where it is not the study's own.

    A report by another metric than the frozen one, of an unfinished study, or of an earlier
    revision, has a folder of its own: it must not replace the one by the rule that was fixed before
    the runs.
    """
    if isinstance(source, Path):
        return source.with_name(f"{source.stem}-report"), ""
    from ablate.analysis.rule import read_rule

    name, said, manifest = source.report_path.name, [], source.manifest()
    if (number := j.manifest.get("revision")) != manifest.get("revision"):
        name += f"-revision-{number}"
        said.append(f"revision {number} of {manifest['revision']}")
    if j.rule.metric != read_rule(manifest)[0].metric:
        name += "-" + re.sub(r"[^A-Za-z0-9_.-]", "_", j.rule.metric)
        said.append("another metric than the frozen one")
    if j.unfinished:
        name += "-partial"
        said.append("an unfinished study")
    return source.report_path.with_name(name), " and of ".join(said)


def _compare(
    judged: list[Judgement], first: StudyDir | Path, options: argparse.Namespace
) -> list[dict[str, Any]]:
    """Prints and writes how the studies compare; the files lie with the first, or in --out."""
    from rich.console import Console

    from ablate.analysis.comparison import compare, show_comparison, write_comparison

    comparison = compare(judged)
    if not options.json:
        show_comparison(comparison, Console(highlight=False))
    folder = _folder(first, judged[0])[0] if options.out is None else Path(options.out)
    page = write_comparison(comparison, folder)
    print(f"Comparison: {page}", file=sys.stderr if options.json else sys.stdout)
    return comparison.to_json()


def _parser() -> Parser:
    parser = Parser(
        "report",
        description="Verdicts, tables and plots of a study; writes a page, Markdown, CSV, Parquet.",
        examples=EXAMPLES,
    )
    parser.add_argument("study", nargs="*", help="a study's name or folder, or a table of curves")
    parser.add_argument("--json", action="store_true", help="one object on standard output")
    parser.add_argument(
        "--out",
        metavar="DIR",
        help="where the files go (default: report/ in the study, "
        "report-METRIC/ with --metric of another metric, report-partial/ of an unfinished study, "
        "report-revision-N/ of an earlier revision)",
    )
    parser.add_argument("--metric", help="another metric than the frozen one (marked exploratory)")
    parser.add_argument(
        "--partial", action="store_true", help="judge an unfinished study (marked exploratory)"
    )
    parser.add_argument(
        "--revision",
        type=int,
        metavar="N",
        help="the study without the seeds that were added after revision N (1: the launch)",
    )
    parser.add_argument("--baseline", metavar="ARM", help="of a table (default: its first arm)")
    parser.add_argument("--runs-dir", default="runs", help="where studies lie (default: runs)")
    return parser
