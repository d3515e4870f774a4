"""What the figures of a manifest look like: a table, report.html, report.png and a model card."""

from quantize.report.table import build_table, print_table
from quantize.report.write import write_report

__all__ = ["build_table", "print_table", "write_report"]
