"""From a model file to a bundle of ONNX graphs; the only home of onnx and gguf."""
