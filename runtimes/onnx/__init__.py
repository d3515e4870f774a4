"""The ONNX Runtime runner. Nothing outside this package knows the library's name."""
