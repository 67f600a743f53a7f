"""`ablate claims`: what others said, what the studies on disk measured, and what follows."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from ablate.cli.arguments import reading_parser, take_runs_dir
from ablate.errors import AblateError, ConfigError, StudyError
from ablate.rundir import find_study, list_studies, write_atomic

__all__ = ["main"]

EXAMPLES = """\
  ablate claims                              of every study below runs/
  ablate claims noisy_norm chunked           of these studies
  ablate claims --save ledger.json           keep what the ledger is computed from ...
  ablate claims ledger.json --markdown       ... and compute it from that
"""


def main(argv: Sequence[str]) -> int:
    """Prints the ledger, and returns 0, or 1 where a study that nobody named is damaged and left
    out; raises AblateError where there is nothing to print.
    """
    parser = reading_parser("claims", description=__doc__ or "", examples=EXAMPLES)
    parser.add_argument("study", nargs="*", help="studies, or one stored ledger (default: all)")
    parser.add_argument("--markdown", action="store_true", help="the page docs/claims.md")
    parser.add_argument("--save", metavar="FILE", help="write what the ledger is computed from")
    options = parser.read(argv)
    if options.json and options.markdown:
        raise AblateError("--json and --markdown: give one of them.")
    names = take_runs_dir(options, options.study)

    # Imported here: pandas takes half a second, and `ablate claims --help` should not.
    from ablate.analysis.claims_page import claims_markdown
    from ablate.analysis.claims_view import claims_view
    from ablate.analysis.judgement import plain
    from ablate.analysis.ledger import ledger, read_claimed, read_stored, store

    if options.save and not Path(options.save).parent.is_dir():
        reason = f"is in a folder that is not there ({Path(options.save).parent})"
        raise ConfigError("--save", options.save, reason, "Make it, or name another file")
    damaged: list[str] = []
    stored = [name for name in names if name.endswith(".json")]
    if stored:
        if len(names) > 1:
            raise AblateError(f"{' '.join(names)}: give one stored ledger, or studies.")
        claimed, source = read_stored(Path(stored[0])), stored[0]
    else:
        runs, source = options.runs_dir, " ".join(names) or f"runs_dir={options.runs_dir}"
        if names:
            claimed = read_claimed([find_study(n, runs) for n in names])
        else:
            claimed = []
            for study in sorted(list_studies(runs), key=lambda s: s.name):
                try:
                    claimed += read_claimed([study])
                except StudyError as error:  # the others have their claims all the same
                    damaged.append(f"{study.name} is left out. {error}")
    for said in damaged:
        print(f"ablate claims: {said}", file=sys.stderr)
    if not claimed:
        raise AblateError(
            f"no study of {source} carries a claim. Write `claim:` in a sweep, or run one that "
            "has it: ablate launch sweep=claims/chunked."
        )
    table = ledger(claimed)
    if options.save:
        write_atomic(Path(options.save), store(claimed))
    if options.json:
        rows = table.to_dict("records")
        print(json.dumps({"claims": [{str(k): plain(v) for k, v in r.items()} for r in rows]},
                         indent=2))  # fmt: skip
    elif options.markdown:
        print(claims_markdown(table, claimed, source), end="")
    else:
        from rich.console import Console

        Console(highlight=False).print(claims_view(table))
    if options.save:
        print(f"Saved: {options.save}", file=sys.stderr)
    return 1 if damaged else 0
