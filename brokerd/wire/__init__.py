"""What goes over the wire: generated messages (v1/), the hand-written codecs of the two streams, method names.

No rule of the log or the producer may live here.
"""
