"""The network side of a broker: listening sockets, connections, file ranges on their way out."""
