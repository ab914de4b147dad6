"""The structures of DLPack that tests make by hand."""

from __future__ import annotations

import ctypes


class DLTensor(ctypes.Structure):
    """A tensor as DLPack describes it, and behind it what DLManagedTensor adds."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", ctypes.c_int32 * 2),
        ("dimensions", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("offset", ctypes.c_uint64),
        ("owner", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    )


def capsule_of(tensor: DLTensor) -> object:
    """What `__dlpack__` gives: a capsule of the tensor, which has to outlive it."""
    new = ctypes.pythonapi.PyCapsule_New
    new.restype = ctypes.py_object
    new.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    capsule: object = new(ctypes.addressof(tensor), b"dltensor", None)
    return capsule
