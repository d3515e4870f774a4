"""The route by optimum's exporter, for what onnxruntime-genai's builder does not know."""
