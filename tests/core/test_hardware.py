"""Data sheet entries: complete, dense peaks, and named errors."""

import pytest

from focus_bench.core.errors import UsageError
from focus_bench.core.hardware import (
    HARDWARE,
    SHEET_OF_DEVICE,
    Hardware,
    get_hardware,
    sheet_of_device,
)


def test_the_five_entries() -> None:
    assert list(HARDWARE) == ["a100-sxm4-80g", "h100-pcie", "h100-sxm", "h200", "b200"]
    for name, entry in HARDWARE.items():
        assert get_hardware(name) is entry
        assert entry.name == name
        assert "data sheet" in entry.source


def test_peaks_are_dense_and_units_decimal() -> None:
    h200 = get_hardware("h200")
    # 1,979 TFLOPS are printed with sparsity; half of that is what dense products can reach.
    assert h200.dense_16bit_flops == pytest.approx(1979e12 / 2, rel=1e-3)
    assert h200.memory_bytes == 141 * 10**9
    # FLOPs per byte at which compute and memory balance: 100 to 400 for all of these.
    for entry in HARDWARE.values():
        assert 100 < entry.dense_16bit_flops / entry.memory_bandwidth < 400
        assert entry.host_link_bandwidth < entry.memory_bandwidth / 20


def test_an_unknown_name_lists_what_exists() -> None:
    with pytest.raises(UsageError, match=r"--gpu: 'rtx' .*a100-sxm4-80g, .*b200"):
        get_hardware("rtx")


def test_a_peak_of_zero_is_refused() -> None:
    values = {**vars(get_hardware("h200")), "memory_bandwidth": 0.0}
    with pytest.raises(UsageError, match="hardware memory_bandwidth"):
        Hardware(**values)


def test_every_device_name_leads_to_its_data_sheet() -> None:
    assert all(sheet in HARDWARE for sheet in SHEET_OF_DEVICE.values())
    assert sheet_of_device("NVIDIA H200") is HARDWARE["h200"] is sheet_of_device("h200")
    assert sheet_of_device("cpu") is None
