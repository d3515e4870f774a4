"""Rows on engines: how many, in which order, what came of them."""
