"""Benchmarks: ratios measured in one run, on the models that a user has or on one made here."""
