"""What is going on: the machine, the engine, and what both have reported."""
