"""Jinja2 templates from anybody, in a sandbox with bounds on time, memory and output."""
