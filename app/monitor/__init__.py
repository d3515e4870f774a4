"""What the machine and the engine are doing, and what they have reported, for a screen that looks
now and then. How that is drawn belongs to `app.tui`."""
