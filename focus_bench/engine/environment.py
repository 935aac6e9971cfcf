"""Samples a GPU's clocks, power, temperature and clock reasons while a run goes on, through NVML.

Knows the driver's library (nvidia-ml-py, if it is installed), no torch and no run; summaries are
made in report/.
"""

import importlib
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from types import TracebackType
from typing import Protocol, Self, cast

from focus_bench.core.records import EnvironmentSample

INTERVAL_S = 0.1
_PATIENCE_S = 5.0  # for a driver that no longer answers; the run's results are not to wait longer

# Bits of nvmlDeviceGetCurrentClocksEventReasons (nvml.h), named as nvidia-smi names its fields.
CLOCK_REASONS = {
    "gpu_idle": 0x1,
    "applications_clocks_setting": 0x2,
    "sw_power_cap": 0x4,
    "hw_slowdown": 0x8,
    "sync_boost": 0x10,
    "sw_thermal_slowdown": 0x20,
    "hw_thermal_slowdown": 0x40,
    "hw_power_brake_slowdown": 0x80,
    "display_clocks_setting": 0x100,
}


class Nvml(Protocol):
    """What is used of the module pynvml; every function raises NVMLError for what is not there."""

    NVMLError: type[Exception]
    NVML_CLOCK_SM: int
    NVML_CLOCK_MEM: int
    NVML_TEMPERATURE_GPU: int

    def nvmlInit(self) -> None:
        """Load the driver's library; counted, each call wants one nvmlShutdown."""

    def nvmlShutdown(self) -> None:
        """Give one nvmlInit back."""

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> object:
        """The handle of the GPU "GPU-...", whatever CUDA_VISIBLE_DEVICES numbers it."""

    def nvmlDeviceGetClockInfo(self, handle: object, kind: int) -> int:
        """A clock in MHz."""

    def nvmlDeviceGetPowerUsage(self, handle: object) -> int:
        """Power of the board in mW."""

    def nvmlDeviceGetTemperature(self, handle: object, sensor: int) -> int:
        """Temperature in degrees Celsius."""

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: object) -> int:
        """Energy since the driver was loaded, in mJ."""

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: object) -> int:
        """Bits of CLOCK_REASONS."""


def load_nvml() -> Nvml | None:
    """The module pynvml of nvidia-ml-py, None where it is not installed."""
    try:
        return cast(Nvml, importlib.import_module("pynvml"))
    except ImportError:
        return None


class GpuSampler:
    """Samples one GPU from a thread of its own, from entering the context to leaving it.

    `uuid` is the GPU's ("GPU-..."); "" samples nothing, and so does a GPU or a library that cannot
    be had. Entering takes a first sample and leaving a last one, so the samples span the run; their
    times count from the end of entering. `nvml` takes the place of the installed module, `now` that
    of the clock (seconds).
    """

    def __init__(
        self,
        uuid: str,
        *,
        nvml: Nvml | None = None,
        interval_s: float = INTERVAL_S,
        now: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._uuid = uuid
        self._nvml = nvml
        self._interval_s = interval_s
        self._now = now
        self._gpu: _Gpu | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="gpu-sampler", daemon=True)
        self._start_s = 0.0
        self._taken: list[EnvironmentSample] = []  # with times of the clock

    def __enter__(self) -> Self:
        nvml = self._nvml or (load_nvml() if self._uuid else None)
        self._gpu = None if nvml is None or not self._uuid else _Gpu.open(nvml, self._uuid)
        if self._gpu is not None:
            self._take(self._gpu)
            self._thread.start()
        self._start_s = self._now()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._gpu is None:
            return
        self._stop.set()
        self._thread.join(_PATIENCE_S)
        if not self._thread.is_alive():
            self._take(self._gpu)
            self._gpu.close()

    @property
    def samples(self) -> tuple[EnvironmentSample, ...]:
        """What was seen, in order of time."""
        start_s = self._start_s
        return tuple(replace(taken, time_s=taken.time_s - start_s) for taken in self._taken)

    def _sample(self) -> None:
        assert self._gpu is not None
        while not self._stop.wait(self._interval_s):
            self._take(self._gpu)

    def _take(self, gpu: "_Gpu") -> None:
        self._taken.append(gpu.read(self._now()))


class _Gpu:
    """One GPU behind the library; a question that it does not answer gives None."""

    def __init__(self, nvml: Nvml, handle: object) -> None:
        self._nvml = nvml
        self._handle = handle

    @classmethod
    def open(cls, nvml: Nvml, uuid: str) -> "_Gpu | None":
        """None without a driver or without that GPU."""
        try:
            nvml.nvmlInit()
        except nvml.NVMLError:
            return None
        try:
            return cls(nvml, nvml.nvmlDeviceGetHandleByUUID(uuid))
        except nvml.NVMLError:
            nvml.nvmlShutdown()
            return None

    def close(self) -> None:
        self._nvml.nvmlShutdown()

    def read(self, time_s: float) -> EnvironmentSample:
        nvml, handle = self._nvml, self._handle
        power_mw = self._ask(lambda: nvml.nvmlDeviceGetPowerUsage(handle))
        energy_mj = self._ask(lambda: nvml.nvmlDeviceGetTotalEnergyConsumption(handle))
        bits = self._ask(lambda: nvml.nvmlDeviceGetCurrentClocksEventReasons(handle))
        return EnvironmentSample(
            time_s=time_s,
            sm_clock_mhz=self._ask(lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)),
            memory_clock_mhz=self._ask(
                lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM)
            ),
            power_w=None if power_mw is None else power_mw / 1000,
            temperature_c=self._ask(
                lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)
            ),
            energy_j=None if energy_mj is None else energy_mj / 1000,
            clock_reasons=None if bits is None else _names(bits),
        )

    def _ask(self, question: Callable[[], int]) -> int | None:
        try:
            return question()
        except (self._nvml.NVMLError, AttributeError):  # an old library lacks the function itself
            return None


def _names(bits: int) -> tuple[str, ...]:
    return tuple(name for name, bit in CLOCK_REASONS.items() if bits & bit)
