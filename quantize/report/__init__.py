"""Figures of a manifest as people see them: a table, report.html, report.png and a model card."""
