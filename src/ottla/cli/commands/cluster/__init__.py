"""The commands of `ottla cluster`."""
