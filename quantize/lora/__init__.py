"""LoRA adapters: found, identified, and merged into their base model before anything is built. What
is built from the merged model does not belong here."""
