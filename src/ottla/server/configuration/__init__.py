"""A broker's configuration: the tables of settings, where values come from, what may be changed."""
