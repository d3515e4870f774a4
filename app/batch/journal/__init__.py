"""The journal beside the output: every finished row, safe from a crash at once."""
