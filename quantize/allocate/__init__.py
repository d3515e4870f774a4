"""Cost and loss of each tensor's types, and the choice of types for a target."""
