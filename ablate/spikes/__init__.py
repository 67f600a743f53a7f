"""Loss spikes on plain arrays: online and offline from the same code. NumPy only."""

from ablate.spikes.detector import Detector, detect
from ablate.spikes.events import ALERTS, KINDS, Event, latest, recorded
from ablate.spikes.paired import Comparison, compare
from ablate.spikes.references import RULES
from ablate.spikes.scores import score

__all__ = [
    "ALERTS",
    "KINDS",
    "RULES",
    "Comparison",
    "Detector",
    "Event",
    "compare",
    "detect",
    "latest",
    "recorded",
    "score",
]
