"""Reports of a job: its figures, progress, events, time left, the summary. Nothing here decides how
the job runs."""
