"""`ablate generate TRIAL [PROMPT]`: text from the newest weights of a trial."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Sequence
from typing import Any

from ablate.cli.arguments import reading_parser, take_runs_dir
from ablate.cli.trials import find_trial
from ablate.errors import AblateError, ConfigError

__all__ = ["main"]

EXAMPLES = """\
  ablate generate hello/qk_norm-s0 "In the beginning"
  ablate generate hello/qk_norm-s0 "In the beginning" --temperature 0.8 --top-p 0.95 --seed 1
  ablate generate hello/qk_norm-s0 "In the beginning" --tokens 500 cache=dynamic cache.budget=128
  ablate generate hello/qk_norm-s0 "In the beginning" cache=preheated cache.preheat=1024
  ablate generate hello/qk_norm-s0 -- cache=lru             behind -- a prompt, whatever it is
"""

DESCRIPTION = """\
Text from the newest weights of a trial, the most probable token each time, or sampled.

cache=... names what keeps the keys and values of what was read (full, window, lru, heavy_hitter,
dynamic, dynamic_as_published: at most cache.budget tokens a layer; preheated: those of the training
text's most frequent n-grams are there beforehand). Without it everything is kept.
"""

OVERRIDE = re.compile(r"cache(\.\w+)?=\S*")


def main(argv: Sequence[str]) -> int:
    parser = reading_parser("generate", description=DESCRIPTION, examples=EXAMPLES)
    parser.add_argument("words", nargs="*", metavar="TRIAL, PROMPT", help="STUDY/TRIAL or a folder")
    parser.add_argument("--tokens", type=int, default=64, help="new ones at most (64)")
    parser.add_argument("--beams", type=int, default=1, help="sequences that a search keeps (1)")
    parser.add_argument("--temperature", type=float, help="samples; 1 as the model has it")
    parser.add_argument("--top-k", type=int, help="samples among so many")
    parser.add_argument("--top-p", type=float, help="samples among the fewest of this probability")
    parser.add_argument("--seed", type=int, default=0, help="of the samples (0)")
    asked = list(argv)
    at = asked.index("--") if "--" in asked else len(asked)
    options = parser.read(asked[:at])
    words, overrides = _sort(options, asked[at + 1 :])
    if not 1 <= len(words) <= 2:
        raise AblateError(
            f"{len(words)} words: name a trial, as STUDY/TRIAL or a folder, and a prompt in quotes."
        )
    trial = find_trial(words[0], options.runs_dir)
    prompt = words[1] if len(words) == 2 else ""

    from ablate.train.continuation import Wish, continue_text

    wish = Wish(
        tokens=options.tokens,
        beams=options.beams,
        temperature=options.temperature,
        top_k=options.top_k,
        top_p=options.top_p,
        seed=options.seed,
        cache=_cache(overrides),
    )
    try:
        found = continue_text(trial, prompt, wish)
    except ConfigError as error:
        if error.field != "model.max_sequence_length":
            raise
        raise AblateError(
            f"--tokens {wish.tokens}: with the prompt that is more than the {error.value} "
            "positions that this trial's model has learnt. Ask for fewer, or shorten the prompt."
        ) from error
    if options.json:
        shown = {"trial": trial.id, "step": found.step, "attempt": found.attempt, "prompt": prompt}
        print(json.dumps({**shown, "texts": found.texts, "scores": found.scores}, indent=2))
        return 0
    for text in found.texts:
        print(prompt + text)
    return 0


def _sort(options: argparse.Namespace, last: Sequence[str]) -> tuple[list[str], list[str]]:
    """Trial and prompt, and overrides of the cache.

    A prompt may say anything (`x = 1`, `cache.clear() frees`): what stands behind the trial, and is
    neither an override word for word nor runs_dir=..., is one unread. Behind `--` all is.
    """
    overrides = [w for w in options.words if OVERRIDE.fullmatch(w)]
    left = [w for w in options.words if not OVERRIDE.fullmatch(w)]
    folders = [w for w in left if w.startswith("runs_dir=")]
    plain = [w for w in left if not w.startswith("runs_dir=")]
    prompt = [] if last else plain[1:2]
    others = take_runs_dir(options, [*folders, *plain[:1], *plain[1 + len(prompt) :]])
    return [*others[:1], *prompt, *others[1:], *last], overrides


def _cache(overrides: Sequence[str]) -> Any:
    from ablate.config.compose import Composer
    from ablate.config.schema import CacheConfig
    from ablate.config.typed import build

    return build(CacheConfig, Composer().compose(list(overrides))["cache"], "cache")
