"""Run a function in a child process, so that a native crash is an error and not our death."""
