"""What a build says while it runs, for people and for programs."""
