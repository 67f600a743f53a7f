"""`ablate data prepare`: downloads and tokenises ahead of training, on a login node for example."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import Path

from ablate.cli.arguments import Parser
from ablate.errors import AblateError

__all__ = ["main"]

EXAMPLES = """\
  ablate data prepare                       the default corpus
  ablate data prepare data=asv
  ablate data prepare data=kjv_bpe data.path=my_texts/       tokens of a BPE trained on them
  ablate data prepare data.path=my_texts/ --out my_tokens/   a folder that data.path= takes
"""


def main(argv: Sequence[str]) -> int:
    parser = Parser("data", description=__doc__ or "", examples=EXAMPLES)
    parser.add_argument("action", nargs="?", help="prepare")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="Hydra overrides")
    parser.add_argument("--out", metavar="DIR", help="write the token files there too")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    options = parser.read(argv)
    if options.action != "prepare":
        raise AblateError("write `ablate data prepare KEY=VALUE ...`.")
    from ablate.config.compose import Composer
    from ablate.config.schema import TrialConfig
    from ablate.data.opening import prepare_files
    from ablate.launch.preflight import check_data
    from ablate.plan import resolve

    config = resolve(Composer().compose(options.overrides))
    data = check_data(config, progress=True)
    folder = data.train.files[0].path.parent
    if options.out is not None:
        typed = TrialConfig.from_mapping(config)
        prepare_files(typed.data, options.out, eos_token_id=typed.model["eos_token_id"])
        folder = Path(options.out)
    facts = {
        "data": {k: v for k, v in config["data"].items() if v is not None},
        "vocab_size": data.vocab_size,
        "eos_token_id": data.eos_token_id,
        "fingerprint": data.fingerprint,
        "folder": str(folder),
    }
    if options.json:
        print(json.dumps(facts, indent=2))
    else:
        print(
            f"The data are ready: vocabulary {data.vocab_size}, "
            f"fingerprint {data.fingerprint[:16]}, in {folder}."
        )
        if options.out is not None:
            print(f"To train on them: data.path={shlex.quote(options.out)} {data.of_model()}")
    return 0
