"""What this machine has, which of it works, and the child processes and locks that need it."""
