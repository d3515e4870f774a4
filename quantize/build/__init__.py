"""A run of `quantize`: its order of steps, its child processes, its work folder, what is published.
How a format is made belongs to `gguf` and `onnx`; how a file is measured, to `quality`."""
