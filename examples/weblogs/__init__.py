"""The sample pipeline over a web server's logs."""
