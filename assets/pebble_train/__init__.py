"""How Pebble is made: tokenizer, packing, optimizer, scoring and export."""
