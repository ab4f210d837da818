"""The compiled loops between record batches and Arrow buffers, and how they come to be there.

`decoding` is the module that has all of them, and the rules that hold for each; `readiness` imports it
when it pays. Nothing is compiled or loaded by importing this room.
"""
