"""Loss spikes on plain arrays: online and offline from the same code. NumPy only."""

from ablate.spikes.detector import Detector, detect
from ablate.spikes.events import ALERTS, KINDS, Event, latest

__all__ = ["ALERTS", "KINDS", "Detector", "Event", "detect", "latest"]
