"""Load a quantized model file, batch requests on it, stream tokens. No torch, no UI."""
