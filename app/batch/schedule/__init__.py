"""Rows on engines: how many engines, which row is next, and what follows when a row or an engine
fails. Reading the input and writing the output do not belong here."""
