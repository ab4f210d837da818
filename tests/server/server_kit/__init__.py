"""What the tests of the server share: a broker in a thread, a typed client, ready-made requests."""
