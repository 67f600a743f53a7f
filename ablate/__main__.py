"""`python -m ablate` is `ablate`."""

from __future__ import annotations

import sys

from ablate.cli import main

if __name__ == "__main__":
    sys.exit(main())
