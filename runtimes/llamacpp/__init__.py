"""The llama.cpp runner. Nothing outside this package knows the library's name."""
