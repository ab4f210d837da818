"""What `ottla sql` is made of: its prompt, its output, streaming results."""
