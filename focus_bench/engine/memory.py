"""How many KV pages fit beside the weights; knows devices' memory, not what pages hold."""

import gc
import os
from pathlib import Path

import torch

from focus_bench.core.errors import CapacityError
from focus_bench.core.model_spec import ModelSpec


def free_bytes(device: torch.device) -> tuple[int, int]:
    """Bytes that are (free, in all) on `device`; on the CPU what the system could give to us."""
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        return free, total
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    meminfo = Path("/proc/meminfo")
    if not meminfo.exists():
        return total, total
    fields = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
    available = int(fields["MemAvailable"].split()[0]) * 1024
    # In a container the limit of the control group is what counts, the host's memory is not ours.
    limit = Path("/sys/fs/cgroup/memory.max")
    if limit.exists() and (text := limit.read_text().strip()) != "max":
        total = min(total, int(text))
    return min(available, total), total


def check_weights_fit(spec: ModelSpec, *, budget_bytes: int) -> None:
    """Raise CapacityError, with the bytes wanted and had, if weights exceed the budget.

    To be asked before loading: the budget is that of an empty device.
    """
    if spec.weight_bytes > budget_bytes:
        raise CapacityError(
            f"memory for the weights of {spec.name}",
            f"{spec.weight_bytes:,} bytes wanted, {max(0, budget_bytes):,} bytes had",
            "a larger --gpu-memory-utilization, or a smaller model",
        )


def memory_budget_bytes(device: torch.device, utilization: float) -> int:
    """Bytes that may still be taken: `utilization` of the whole minus what is in use by anyone.

    On the CPU `utilization` is taken of what is available, since the rest belongs to others.
    """
    free, total = free_bytes(device)
    if device.type == "cuda":
        return int(total * utilization) - (total - free)
    return int(free * utilization)


def page_bytes(spec: ModelSpec, page_size: int) -> int:
    """Bytes of one KV page over all layers, keys and values."""
    return spec.kv_bytes_per_token * page_size


def num_pages_that_fit(
    spec: ModelSpec, *, page_size: int, budget_bytes: int, wanted_pages: int | None = None
) -> int:
    """Pages of `page_size` tokens that fit into the budget, at most `wanted_pages` of them.

    `wanted_pages` is what the run can use at most (on a CPU more would only cost memory); None
    takes all that fits. Raises CapacityError, with the bytes wanted and had, if not even one fits.
    """
    per_page = page_bytes(spec, page_size)
    fitting = budget_bytes // per_page
    if fitting < 1:
        raise CapacityError(
            f"memory for KV pages of {spec.name}",
            f"{per_page:,} bytes wanted for one page of {page_size} tokens, "
            f"{max(0, budget_bytes):,} bytes had",
            "a larger --gpu-memory-utilization, a smaller --page-size or a smaller model",
        )
    return fitting if wanted_pages is None else max(1, min(fitting, wanted_pages))


def check_pages_fit(spec: ModelSpec, *, page_size: int, num_pages: int, budget_bytes: int) -> None:
    """Raise CapacityError if ``--num-pages`` pages do not fit into the budget."""
    wanted = page_bytes(spec, page_size) * num_pages
    if wanted > budget_bytes:
        raise CapacityError(
            "--num-pages",
            f"{num_pages} ({wanted:,} bytes wanted, {max(0, budget_bytes):,} bytes had)",
            f"at most {max(0, budget_bytes // page_bytes(spec, page_size))}",
        )


def release_memory() -> None:
    """Give memory that no tensor holds any more back to the device.

    The allocator of PyTorch keeps freed memory for itself, which counts as used where the pages of
    the next run are fitted into what is free. Executors and their loops refer to each other, so
    their tensors live until the garbage collector comes by.
    """
    gc.collect()
    torch.cuda.empty_cache()  # does nothing where CUDA is not in use
