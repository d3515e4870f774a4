"""A conversation with a model, without a user interface: what the chat screen shows and does."""
