"""The engine: requests in, steps planned, tokens drawn, text out. No runtime is named here."""
