"""Headless batch jobs: prompt files in, one record per row out, resumable at any moment."""
