"""What `ingot doctor` looks at and how it shows it."""
