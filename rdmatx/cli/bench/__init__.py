"""The benchmarks behind ``rdmatx bench``.

Two worker processes on this host (``worker``) hold the memory and move the bytes; the command's
own process (``pair``, ``p2p``) tells them what to do, over a socket each, and does the sums.
Ours and the peers (``contestants``) take turns in the same two processes, over the same memory,
so that whatever disturbs the machine disturbs them alike.
"""
