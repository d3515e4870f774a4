"""Runs of `quantize` as a screen sees them: what to ask for, what it needs, how it goes."""
