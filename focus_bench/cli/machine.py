"""What is known of this machine without PyTorch: NVIDIA's driver and clocks, memory."""

import os
import subprocess

_GPU_FIELDS = ("name", "driver_version", "clocks.sm", "clocks.mem", "power.limit")


def gpu_facts() -> dict[str, str]:
    """Name, driver, clocks and power limit of the first GPU; empty without nvidia-smi."""
    query = f"--query-gpu={','.join(_GPU_FIELDS)}"
    try:
        done = subprocess.run(
            ["nvidia-smi", query, "--format=csv,noheader", "--id=0"],
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return {}
    values = [value.strip() for value in done.stdout.strip().split(",")]
    if len(values) != len(_GPU_FIELDS):
        return {}
    return {f"gpu {name}": value for name, value in zip(_GPU_FIELDS, values, strict=True)}


def memory_bytes() -> int:
    """Bytes of main memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
