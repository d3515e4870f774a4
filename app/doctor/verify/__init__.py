"""`ingot doctor --verify`: what works on this machine, proved by running it."""
