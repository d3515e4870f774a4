"""Tools of MCP servers, which a model calls in `ingot run` and `ingot chat`."""
