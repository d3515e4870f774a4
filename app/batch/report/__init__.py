"""What a job tells while it runs and when it has ended."""
