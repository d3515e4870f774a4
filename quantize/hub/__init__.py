"""Model repositories on the hub: what is in them, and how to get it."""
