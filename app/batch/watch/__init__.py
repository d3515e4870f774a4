"""Batch jobs as a screen sees them: started as `ingot batch` in processes of their own, followed by
their events and journals. No user interface and no engine belongs here."""
