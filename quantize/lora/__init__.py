"""LoRA adapters, merged into their base model before anything is built."""
