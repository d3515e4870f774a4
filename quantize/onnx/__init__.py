"""ONNX folders: onnxruntime-genai's model builder."""
