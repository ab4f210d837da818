"""What the controller decides, without I/O: a draft and a request in, results out.

A decision changes the draft for the parts of the request that are in order and answers the others
with their error. It may run again on a newer image, so it keeps nothing and reads no clock; chance
comes from the Random it is given. A decision that raises has not changed the draft.
"""
