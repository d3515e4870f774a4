"""Headless batch jobs: prompt files in, one record per row out, resumable at any moment. The
modules here are the job as a whole (what was asked, the run, its settings); each part of it has a
folder."""
