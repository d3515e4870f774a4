"""The engine: requests in, steps planned, tokens drawn, text out; and the contract that a runner
keeps. No runtime's library is imported here, and no other process is known."""
