"""`ablate diff TRIAL TRIAL`: the fields in which the configurations of two trials differ."""

from __future__ import annotations

import json
from collections.abc import Sequence

from ablate.cli.arguments import reading_parser, take_runs_dir
from ablate.cli.trials import find_trial
from ablate.errors import AblateError, show

__all__ = ["main"]

EXAMPLES = """\
  ablate diff hello/baseline-s0 hello/rope-s0
  ablate diff runs/a/trials/x-s0-12345678 runs/b/trials/x-s0-87654321 --json
"""


def main(argv: Sequence[str]) -> int:
    from ablate.plan import difference

    parser = reading_parser("diff", description=__doc__ or "", examples=EXAMPLES)
    parser.add_argument("trials", nargs="*", metavar="TRIAL", help="STUDY/TRIAL or a folder")
    options = parser.read(argv)
    words = take_runs_dir(options, options.trials)
    if len(words) != 2:
        raise AblateError("name two trials, each as STUDY/TRIAL or a folder.")
    first, second = (find_trial(word, options.runs_dir) for word in words)
    fields = difference(first.config(), second.config())
    if options.json:
        print(json.dumps({"trials": [first.id, second.id], "diff": fields}, indent=2))
        return 0
    if not fields:
        print("The configurations are equal.")
    width = max((len(field) for field in fields), default=0)
    for field, (one, other) in fields.items():
        print(f"{field:<{width}}  {show(one)} -> {show(other)}")
    return 0
