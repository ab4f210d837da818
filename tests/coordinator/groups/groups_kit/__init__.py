"""What the tests of consumer groups share."""
