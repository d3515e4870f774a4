"""The user's settings: a TOML file, the environment, and what holds where they say nothing."""
