"""A run of `quantize`: its order of steps, its work folder, what is measured and published.
How a format is made belongs to `gguf` and `onnx`; how a file is measured, to `quality`."""
