"""What the interop tests share: records, the face every client shows, toolchains, raw sockets."""
