"""Turn a Hugging Face model into measured GGUF and ONNX files.

The modules that a front end needs to find a model that is already built (`manifest`, `recipe`,
`errors`) import neither torch nor transformers.
"""
