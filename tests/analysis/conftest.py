from __future__ import annotations

import sys
from pathlib import Path

# The synthetic studies' module lies beside the tests, whatever import mode pytest runs in.
sys.path.insert(0, str(Path(__file__).parent))
