"""The engine in a process of its own, so that a native crash stays there."""
