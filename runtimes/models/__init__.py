"""Model files on the disk: their headers, identity, and the memory that they will take."""
