"""Front ends: command line, chat, batch jobs, benchmarks."""
