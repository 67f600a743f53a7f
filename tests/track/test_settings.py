"""The section `track` refuses what wandb would refuse later."""

from __future__ import annotations

import pytest

from ablate.config.schema import TrackConfig
from ablate.errors import ConfigError


@pytest.mark.parametrize(
    ("field", "value"),
    [("project", "a/b"), ("project", " "), ("project", "p" * 129), ("entity", "me#1"),
     ("tags", [""]), ("tags", ["t" * 65])],
)  # fmt: skip
def test_names_that_wandb_would_refuse_are_refused_first(field: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"track.{field}"):
        TrackConfig(**{field: value})


def test_names_with_letters_of_any_kind_are_fine() -> None:
    TrackConfig(project="Ablationen für später", entity="équipe", tags=["größe=1m"])
