"""What the tests of transactions share: a world around the state machine, and requests over sockets."""
