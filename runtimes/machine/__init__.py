"""Hardware of this machine, and whether the native libraries work on it; child processes, locks and
small state files. What a model file is does not belong here."""
