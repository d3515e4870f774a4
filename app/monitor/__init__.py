"""Samples of the machine and the engine, and events that they reported. `app.tui` draws them."""
