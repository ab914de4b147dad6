"""The provider's tests once more, on a real soft-RoCE device.

Every test below is one of the folders named here, run by a pytest of its own inside `rdmatx lab run` with
--provider=system. It shows up in this run under the id it has there, with its own outcome, so that one look
tells that the same tests pass on the software HCA and on rxe. lab_items.py does the work.
"""

FOLDERS = ("tests/conformance", "tests/faults", "tests/multiprocess", "tests/soak", "tests/rxe")
