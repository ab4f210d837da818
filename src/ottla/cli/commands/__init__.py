"""The commands of `ottla`, one module each."""
