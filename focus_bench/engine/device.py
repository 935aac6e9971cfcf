"""Which device and dtype a run uses; knows nothing of models' insides."""

import torch

from focus_bench.core.errors import UsageError, check_choice

TORCH_DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


def resolve_device(name: str) -> torch.device:
    """The device of ``--device``: "auto" takes the first CUDA device if there is one, else the CPU.

    Raises UsageError for "cuda" on a machine without one.
    """
    check_choice("--device", name, ("auto", "cpu", "cuda"))
    if name == "cpu":
        return torch.device("cpu")
    if torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    if name == "cuda":
        raise UsageError("--device", name, "auto, cpu (PyTorch sees no CUDA device here)")
    return torch.device("cpu")


def torch_dtype(name: str) -> torch.dtype:
    """The torch dtype of ``ModelSpec.dtype``."""
    check_choice("dtype", name, tuple(TORCH_DTYPES))
    return TORCH_DTYPES[name]


def device_name(device: torch.device) -> str:
    """What results call the device: the GPU's name, or "cpu"."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
