"""The command line: Typer's commands and options, the console, exit codes."""
