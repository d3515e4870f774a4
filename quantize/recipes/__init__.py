"""What can be built: the recipes, llama.cpp's types, limits of quality, and the keys that say which
builds are the same. How a file is made belongs to `gguf` and `onnx`."""
