"""A norm of the user's own: what it must take."""

from __future__ import annotations

import pytest
from torch import nn

from ablate.errors import ConfigError
from ablate.model import ModelConfig
from ablate.model.norm import build_norm


class TakesNoEps(nn.Module):
    def __init__(self, size):
        super().__init__()


def test_a_norm_of_ones_own_with_another_signature_is_refused():
    config = ModelConfig(layer_norm_type=f"{__name__}:TakesNoEps")
    with pytest.raises(ConfigError, match=r"layer_norm_type.*eps.*reset_parameters"):
        build_norm(config)
