"""The options of clients: declared, read and checked."""
