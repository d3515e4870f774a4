"""GGUF files: llama.cpp's own converter, then its own quantizer."""
