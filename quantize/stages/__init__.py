"""What of a build is done already: finished pieces, the keys that name them, checksums."""
