"""Data sheet facts of devices: peaks, memory and power. Knows nothing of what runs on them."""

from dataclasses import dataclass

from focus_bench.core.errors import UsageError, check_range


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """One device, as its maker's data sheet describes it (decimal SI units).

    `dense_16bit_flops`: peak bf16/fp16 matrix FLOP/s **without** sparsity (data sheets often print
    twice that, "with sparsity"). `memory_bandwidth`: bytes/s of the device memory.
    `host_link_bandwidth`: bytes/s in one direction between host and device. `tdp_w`: watts.
    """

    name: str
    full_name: str
    dense_16bit_flops: float
    memory_bandwidth: float
    memory_bytes: int
    host_link_bandwidth: float
    tdp_w: float
    source: str

    def __post_init__(self) -> None:
        for field in (
            "dense_16bit_flops",
            "memory_bandwidth",
            "memory_bytes",
            "host_link_bandwidth",
            "tdp_w",
        ):
            check_range(f"hardware {field}", getattr(self, field), low=0.0, low_open=True)


_ENTRIES = (
    Hardware(
        name="a100-sxm4-80g",
        full_name="NVIDIA A100-SXM4-80GB",
        dense_16bit_flops=312e12,
        memory_bandwidth=2.039e12,
        memory_bytes=80_000_000_000,
        host_link_bandwidth=32e9,
        tdp_w=400.0,
        source="NVIDIA A100 80GB data sheet: 312 TFLOPS (624 sparse), 2,039 GB/s; PCIe Gen4 x16",
    ),
    Hardware(
        name="h100-pcie",
        full_name="NVIDIA H100 PCIe",
        dense_16bit_flops=756e12,
        memory_bandwidth=2.0e12,
        memory_bytes=80_000_000_000,
        host_link_bandwidth=64e9,
        tdp_w=350.0,
        source="NVIDIA H100 data sheet, PCIe: 1,513 TFLOPS sparse, half of it dense; 2 TB/s; Gen5",
    ),
    Hardware(
        name="h100-sxm",
        full_name="NVIDIA H100 SXM5",
        dense_16bit_flops=989e12,
        memory_bandwidth=3.35e12,
        memory_bytes=80_000_000_000,
        host_link_bandwidth=64e9,
        tdp_w=700.0,
        source="NVIDIA H100 data sheet, SXM: 1,979 TFLOPS sparse, half of it dense; 3.35 TB/s",
    ),
    Hardware(
        name="h200",
        full_name="NVIDIA H200 SXM",
        dense_16bit_flops=989e12,
        memory_bandwidth=4.8e12,
        memory_bytes=141_000_000_000,
        host_link_bandwidth=64e9,
        tdp_w=700.0,
        source="NVIDIA H200 data sheet, SXM: 1,979 TFLOPS sparse, half of it dense; 4.8 TB/s; Gen5",
    ),
    Hardware(
        name="b200",
        full_name="NVIDIA B200 SXM",
        dense_16bit_flops=2.25e15,
        memory_bandwidth=8.0e12,
        memory_bytes=180_000_000_000,
        host_link_bandwidth=64e9,
        tdp_w=1000.0,
        source="NVIDIA DGX B200 data sheet, one of eight GPUs: 1,440 GB and 64 TB/s in all; "
        "2.25 PFLOPS dense bf16 (4.5 sparse); PCIe Gen5 x16 to an x86 host",
    ),
)
HARDWARE: dict[str, Hardware] = {entry.name: entry for entry in _ENTRIES}
# The data sheet of each device, by the name that PyTorch gives the device.
SHEET_OF_DEVICE = {
    "NVIDIA A100-SXM4-80GB": "a100-sxm4-80g",
    "NVIDIA H100 PCIe": "h100-pcie",
    "NVIDIA H100 80GB HBM3": "h100-sxm",
    "NVIDIA H200": "h200",
    "NVIDIA B200": "b200",
}


def get_hardware(name: str) -> Hardware:
    """The data sheet entry called `name`; raises UsageError naming what exists."""
    if name not in HARDWARE:
        raise UsageError("--gpu", name, ", ".join(HARDWARE))
    return HARDWARE[name]


def sheet_of_device(name: str) -> Hardware | None:
    """The entry of a device by PyTorch's name for it or by the entry's own; None without one.

    What stands behind a "+" is an assumption about the host, not the device.
    """
    device = name.partition("+")[0]
    return HARDWARE.get(SHEET_OF_DEVICE.get(device, device))
