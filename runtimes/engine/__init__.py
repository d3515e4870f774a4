"""The engine: which rows run in a step, their keys and values, text and figures."""
