"""What one request may bring, however large its body may be."""

MOST_MESSAGES = 4096
MOST_STOPS = 64
MOST_PROMPTS = 256
MOST_CONTINUATIONS = 256
MOST_INPUTS = 2048
MOST_BIASES = 1024
MOST_TOOLS = 128
MOST_SCHEMA_BYTES = 256 * 2**10
MOST_SCHEMA_DEPTH = 64  # lists and objects within each other
