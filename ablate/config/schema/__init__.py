"""The typed configuration of one trial, section by section; `conf/train.yaml` shows every key
with its default.

`model` stays a mapping here: `ablate.model.config.ModelConfig` gives it its type (it lies one
layer up).
"""

from ablate.config.schema.amount import amount
from ablate.config.schema.batching import BatchingConfig
from ablate.config.schema.cache import CacheConfig
from ablate.config.schema.cluster import ClusterConfig
from ablate.config.schema.data import DataConfig
from ablate.config.schema.evaluation import EvaluateConfig
from ablate.config.schema.optimisation import ClipConfig, OptimConfig, ScheduleConfig
from ablate.config.schema.parallel import ParallelConfig
from ablate.config.schema.running import TrackConfig
from ablate.config.schema.spikes import SpikesConfig
from ablate.config.schema.training import LossConfig, PrecisionConfig, TrainConfig
from ablate.config.schema.trial import TrialConfig

__all__ = [
    "BatchingConfig",
    "CacheConfig",
    "ClipConfig",
    "ClusterConfig",
    "DataConfig",
    "EvaluateConfig",
    "LossConfig",
    "OptimConfig",
    "ParallelConfig",
    "PrecisionConfig",
    "ScheduleConfig",
    "SpikesConfig",
    "TrackConfig",
    "TrainConfig",
    "TrialConfig",
    "amount",
]
