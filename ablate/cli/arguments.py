"""Command-line flags beside Hydra's overrides."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any, NoReturn

from ablate.config.typed import closest
from ablate.errors import AblateError

__all__ = ["Parser", "reading_parser", "take_runs_dir"]


class Parser(argparse.ArgumentParser):
    """argparse, whose mistakes are one paragraph with a suggestion instead of the whole usage."""

    def __init__(self, verb: str, *, description: str, examples: str = "", **more: Any) -> None:
        super().__init__(
            prog=f"ablate {verb}",
            description=description,
            epilog=f"examples:\n{examples}" if examples else None,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
            **more,
        )

    def error(self, message: str) -> NoReturn:
        raise AblateError(f"{message}. `{self.prog} --help` shows what there is.")

    def read(self, argv: Sequence[str]) -> argparse.Namespace:
        """Flags and words in any order; whatever looks like an unknown flag is refused."""
        known, rest = self.parse_known_intermixed_args(list(argv))
        if rest:
            options = [o for a in self._actions for o in a.option_strings if a.dest != "help"]
            hint = closest(rest[0].partition("=")[0], options)
            if "Did you mean" not in hint and any(a.metavar == "KEY=VALUE" for a in self._actions):
                hint = "A field is written without dashes, KEY=VALUE"
            raise AblateError(f"{rest[0]} is not an option of `{self.prog}`. {hint}")
        for action in self._actions:
            value = getattr(known, action.dest, None) if action.option_strings else None
            for one in value if isinstance(value, list) else [value]:
                if isinstance(one, str) and not one.strip():  # an unset variable of a script
                    name = action.option_strings[-1]
                    raise AblateError(f"{name} {one!r} is empty. Give it a value or leave it out.")
        return known


def reading_parser(
    verb: str, *, description: str, examples: str, json: str = "one JSON object on standard output"
) -> Parser:
    """For verbs that read studies: `--json`, which prints what `json` says, and `--runs-dir`."""
    parser = Parser(verb, description=description, examples=examples)
    parser.add_argument("--json", action="store_true", help=json)
    parser.add_argument("--runs-dir", default="runs", help="where studies lie (or runs_dir=...)")
    return parser


def take_runs_dir(options: argparse.Namespace, words: Sequence[str]) -> list[str]:
    """`runs_dir=...` among the words counts as --runs-dir; the other words are returned."""
    left = []
    for word in words:
        if word.startswith("runs_dir="):
            options.runs_dir = word.partition("=")[2]
            if not options.runs_dir:
                raise AblateError("runs_dir= is empty. Name a folder, or leave it out.")
        elif "=" in word and "/" not in word:
            raise AblateError(f"{word} has no meaning here. {closest(word, ['runs_dir=runs'])}")
        else:
            left.append(word)
    return left
