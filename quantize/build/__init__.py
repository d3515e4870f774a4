"""A model's way through: source, export, quantize, check, measure, publish."""
