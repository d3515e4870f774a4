"""What the figures of a manifest look like: a table, report.html, report.png and a model card."""
