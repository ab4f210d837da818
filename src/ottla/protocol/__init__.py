"""The wire: framing, requests and responses, the error table, version ranges. No I/O."""
