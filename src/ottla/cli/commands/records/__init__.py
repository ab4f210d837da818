"""Commands that write, read, look up and delete records, and that look into log folders."""
