"""The main job: files go from one process to another by one-sided writes.

``protocol`` is what the two sides say to each other, ``sender`` and ``receiver`` are the two
sides, ``storage`` is where the receiver puts what arrives, ``digest`` hashes beside the work.
"""
