"""Batch jobs as a screen sees them: started as `ingot batch` in processes of their own, followed by
their events and journals. Nothing here knows of a user interface or loads an engine."""
