"""Records on standard input and output: lines, JSON, columns."""
