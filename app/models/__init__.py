"""Model files that can be chosen: pulled, found, described, resolved, planned."""
