"""Topics as the tables of SQL."""
