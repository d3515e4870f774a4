"""The journal beside the output: every finished row with its key, safe from a crash at once, and
notes on the runs. What an output file looks like does not belong here."""
