"""Model files on the disk, read without loading a runtime: headers, identity, memory."""
