"""The most that one request may bring, however large its body may be."""

from runtimes.untrusted import Bounds

# A schema of 64 levels in a tool of a list, with room for the body around it.
BODY = Bounds(depth=80, values=4_000_000, characters=64 * 2**20)
TOOL = Bounds(depth=64, values=20_000, characters=2**18)  # all keys of its function
ARGUMENTS = Bounds(depth=64, values=100_000, characters=2**22)  # of an earlier call
MOST_MESSAGES = 4096
MOST_STOPS = 64
MOST_STOP_CHARACTERS = 8192  # of all stop strings together
MOST_PROMPTS = 256
MOST_ANSWERS = 256  # prompts times samples
MOST_CONTINUATIONS = 256
MOST_INPUTS = 2048
MOST_BIASES = 1024
MOST_TOOLS = 128
