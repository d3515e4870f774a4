"""Runs of `quantize` as a screen sees them: what to ask for, what it needs, how it goes. The work
is done by a `quantize` process; no user interface belongs here."""
