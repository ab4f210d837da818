"""Compression of record batches: the codecs, the bounds of compressed streams, a change of codec."""
