"""Commands that move records between topics, files and tables, or compute over them."""
