"""The tables of the report besides the verdicts: each a pure function frame -> frame."""
