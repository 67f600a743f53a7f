"""Hydra finds our launcher and sweeper here."""
