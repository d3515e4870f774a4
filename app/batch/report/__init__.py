"""What a job tells while it runs and when it has ended: progress, events, time left, the summary.
It reads figures; nothing here decides how the job runs."""
