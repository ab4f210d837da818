"""One partition's log on disk, and the logs of a broker."""
