"""The command line: one module a command, options that commands share, the console, exit codes.
Typer stays in here. Work does not belong here: a command calls what does it."""
