"""The most memory that this process has held; knows nothing of GPUs."""

import platform
import resource
from pathlib import Path

_STATUS = Path("/proc/self/status")


def peak_memory_bytes() -> int:
    """The largest resident size of this process since its program was loaded.

    Linux's ``ru_maxrss`` is not used where /proc is there: a program started by a large process
    begins with its parent's maximum (seen: 1.3 GB for a program of 0.2 GB).

    Returns
    -------
        Bytes; includes shared pages of libraries.
    """
    if _STATUS.exists():
        for line in _STATUS.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if platform.system() == "Darwin" else peak * 1024
