"""Memory that is returned to the system must be allocated again, page by page.

glibc returns every freed block above a threshold (at most 32 MiB) at once. The activations of a 3D
network are of that size: each operation writes to pages that the system must first find and clear,
which costs several times as much as the writing itself.
"""

from __future__ import annotations

import ctypes
import platform

# <malloc.h>: blocks of at least so many bytes are mapped one by one; so much free memory at the
# end of the heap is given back.
_M_MMAP_THRESHOLD, _M_TRIM_THRESHOLD = -3, -1
_KEPT = (2**30, 2**31 - 1)
# Where glibc's own thresholds end up in a process that frees large blocks.
_USUAL = (32 * 2**20, 64 * 2**20)


def keep_freed_memory() -> bool:
    """Let this process keep freed memory for its next allocations, until `return_freed_memory`.

    Results do not change; the process stays as large as it once was. Blocks above 1 GiB go back to
    the system as before.

    Returns:
        Whether that is possible here: it is with glibc.
    """
    return _set_thresholds(*_KEPT)


def return_freed_memory() -> bool:
    """Undo `keep_freed_memory`, and give what is free now back to the system.

    Returns:
        Whether that is possible here: it is with glibc.
    """
    return _set_thresholds(*_USUAL) and ctypes.CDLL(None).malloc_trim(0) >= 0


def _set_thresholds(mapped: int, trimmed: int) -> bool:
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    return bool(mallopt(_M_MMAP_THRESHOLD, mapped) and mallopt(_M_TRIM_THRESHOLD, trimmed))
