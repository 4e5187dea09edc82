"""The C library, as ``viaduct.h`` declares it."""

from __future__ import annotations

import ctypes
import operator
import os
from typing import Any, Callable, Optional

#: Names the library to use instead of the installed one.
VARIABLE = "VIADUCT_LIBRARY"

#: Its name, beside this package in a wheel, or where the loader looks.
_NAME = "libviaduct.so.0"


class Message(ctypes.Structure):
    """``struct viaduct_msg``."""

    _fields_ = [("tag", ctypes.c_uint32), ("source", ctypes.c_int), ("len", ctypes.c_size_t)]


def _range(kind: Any) -> Optional[tuple[int, int]]:
    """Least and most of the numbers of a type; None for a pointer."""
    if kind not in (ctypes.c_int, ctypes.c_uint32, ctypes.c_int64, ctypes.c_size_t):
        return None
    numbers = 1 << 8 * ctypes.sizeof(kind)
    return (-numbers // 2, numbers // 2 - 1) if kind(-1).value < 0 else (0, numbers - 1)


def _careful(function: Any, arguments: list[Any]) -> Callable[..., Any]:
    """A function that refuses numbers which do not fit, of which ctypes would drop the upper bits."""
    ranges = [_range(kind) for kind in arguments]

    def call(*values: Any) -> Any:
        for value, limits in zip(values, ranges):
            if limits is not None and not limits[0] <= operator.index(value) <= limits[1]:
                raise OverflowError(f"{value} is not from {limits[0]} to {limits[1]}")
        return function(*values)

    return call


def _load() -> ctypes.CDLL:
    beside = os.path.join(os.path.dirname(os.path.abspath(__file__)), _NAME)
    name = os.environ.get(VARIABLE) or (beside if os.path.exists(beside) else _NAME)
    try:
        library = ctypes.CDLL(name, use_errno=True)
    except OSError as error:
        advice = (
            f"{VARIABLE} names it"
            if os.environ.get(VARIABLE)
            else "in the repository of Viaduct: `make build`, then either `pip install ./python` again, which takes it along, "
            f"or `sudo make install` and `sudo ldconfig`, or set {VARIABLE}=.../target/release/libviaduct.so"
        )
        raise ImportError(f"the library {name} cannot be loaded ({advice}): {error}") from error
    inbox, fd, size, ms = ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t, ctypes.c_int
    info = ctypes.POINTER(Message)
    signatures: dict[str, tuple[Any, list[Any]]] = {
        "viaduct_seek_recv": (ctypes.c_ssize_t, [fd, ctypes.c_void_p, size, ctypes.c_int, size]),
        "viaduct_readable": (ctypes.c_ssize_t, [fd]),
        "viaduct_msg_send": (ctypes.c_int, [fd, ctypes.c_uint32, ctypes.c_char_p, size]),
        "viaduct_inbox_open": (inbox, [size, size]),
        "viaduct_inbox_close": (None, [inbox]),
        "viaduct_inbox_add": (ctypes.c_int, [inbox, fd]),
        "viaduct_inbox_remove": (ctypes.c_int, [inbox, ctypes.c_int]),
        "viaduct_inbox_fd": (ctypes.c_int, [inbox]),
        "viaduct_msg_recv": (
            ctypes.c_ssize_t,
            [inbox, ctypes.c_int64, ctypes.c_int, ctypes.c_void_p, size, ms, info],
        ),
        "viaduct_msg_probe": (ctypes.c_ssize_t, [inbox, ctypes.c_int64, ctypes.c_int, ms, info]),
        "viaduct_msg_cancel": (ctypes.c_int, [inbox]),
    }
    for function, (result, arguments) in signatures.items():
        known = getattr(library, function)
        known.restype, known.argtypes = result, arguments
        setattr(library, function, _careful(known, arguments))
    return library


library = _load()
