"""The clients under test, each with the same face, and the table of them."""
