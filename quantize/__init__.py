"""Hugging Face model in, measured GGUF and ONNX files out."""
