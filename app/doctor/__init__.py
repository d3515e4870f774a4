"""Findings of `ingot doctor` on the machine and its model files, and how they are shown."""
