"""Model files that can be chosen: pulled, listed, described, resolved from MODEL, planned. What is
inside a file is read by `runtimes.models`; making files is `quantize`'s."""
