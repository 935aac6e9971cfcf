"""Copies small host arrays to the device without waiting for it."""

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor


def to_device(values: npt.NDArray[np.integer], device: torch.device) -> Tensor:
    """A copy of `values` on `device`.

    From pinned memory: a copy from pageable memory may wait for all work queued on the device,
    and the host could no longer prepare the next step beside it.
    """
    tensor = torch.from_numpy(np.ascontiguousarray(values))
    if device.type == "cuda":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)
