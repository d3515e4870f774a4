"""The chat screen under load, measured from outside: see app.bench.tui."""
