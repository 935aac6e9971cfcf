"""Which device, threads and dtype a run uses; knows nothing of models' insides."""

import os

import torch

from focus_bench.core.cpu_threads import check_threads, default_threads
from focus_bench.core.errors import UsageError, check_choice

TORCH_DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}

# What a measurement on a busy CPU says of itself.
BUSY_NOTE = "other programs were using the cores: slower than on an idle CPU"


def use_cpu_threads(threads: int | None) -> int:
    """Set the threads of CPU products for this process, and return their number.

    None: OMP_NUM_THREADS where it is set, else one fewer than there are cores. OpenMP's threads
    wait for each other by spinning, so one that must share its core with any other program slows
    all of them, by a factor of 5 and more (laboratory log). Raises UsageError as check_threads.
    """
    check_threads(threads)
    chosen = default_threads() if threads is None else threads
    torch.set_num_threads(chosen)
    return chosen


def busy_cores(device: str) -> str:
    """That other programs use the cores of `device` "cpu" (its name), in numbers; else "".

    They must if the load average of the last minute is above the number of cores, for this process
    has at most as many threads as there are cores.
    """
    cores = os.cpu_count()
    try:
        load = os.getloadavg()[0]
    except OSError:  # this system does not say
        return ""
    if device != "cpu" or cores is None or load <= cores:
        return ""
    return f"load {load:.1f} on {cores}"


def resolve_device(name: str, *, cuda_graphs: str = "auto") -> torch.device:
    """The device of ``--device``: "auto" takes the first CUDA device if there is one, else the CPU.

    Raises UsageError for "cuda" on a machine without one, and for `cuda_graphs` "on" on a CPU.
    """
    check_choice("--device", name, ("auto", "cpu", "cuda"))
    if name != "cpu" and torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    if name == "cuda":
        raise UsageError("--device", name, "auto, cpu (PyTorch sees no CUDA device here)")
    if cuda_graphs == "on":
        why = "--device cpu" if name == "cpu" else "PyTorch sees no CUDA device here"
        raise UsageError("--cuda-graphs", cuda_graphs, f"auto, off on a CPU ({why})")
    return torch.device("cpu")


def torch_dtype(name: str) -> torch.dtype:
    """The torch dtype of ``ModelSpec.dtype``."""
    check_choice("dtype", name, tuple(TORCH_DTYPES))
    return TORCH_DTYPES[name]


def device_name(device: torch.device) -> str:
    """What results call the device: the GPU's name, or "cpu"."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
