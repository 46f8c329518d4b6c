"""How much memory the GNU C library, from version 2.33, has handed out."""

import ctypes


class Mallinfo2(ctypes.Structure):
    """The result of mallinfo2(3), for all arenas together."""

    NAMES = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = [(name, ctypes.c_size_t) for name in NAMES.split()]


def mallinfo2() -> Mallinfo2:
    function = ctypes.CDLL(None).mallinfo2
    function.restype = Mallinfo2
    return function()


def bytes_in_use() -> int:
    """Return the bytes that malloc has handed out, in its arenas and as mappings of their own."""
    info = mallinfo2()
    return info.uordblks + info.hblkhd
