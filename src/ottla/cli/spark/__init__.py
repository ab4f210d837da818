"""Spark for commands: a session that starts while they prepare, and the options of jobs."""
