"""The sampler of a GPU's environment, against a library object that stands for NVIDIA's."""

import dataclasses
import sys
import threading
import time
from itertools import pairwise

import pytest

from focus_bench.api import Engine, load_workload, make_point
from focus_bench.core.config import EngineConfig
from focus_bench.core.records import EnvironmentSample
from focus_bench.engine import runner
from focus_bench.engine.environment import CLOCK_REASONS, GpuSampler, Nvml, load_nvml
from focus_bench.report.metrics import compute_metrics

UUID = "GPU-12345678-0000-0000-0000-000000000000"


class FakeNvmlError(Exception):
    """What every function raises for what is not there."""


class FakeNvml:
    """Answers as `answers` says, by function name: a value, a callable or an error to raise."""

    NVMLError = FakeNvmlError
    NVML_CLOCK_SM = 1
    NVML_CLOCK_MEM = 2
    NVML_TEMPERATURE_GPU = 0

    def __init__(self, **answers):
        self.answers = {
            "nvmlDeviceGetPowerUsage": 250_000,
            "nvmlDeviceGetTemperature": 61,
            "nvmlDeviceGetTotalEnergyConsumption": 5_000,
            "nvmlDeviceGetCurrentClocksEventReasons": 0,
            **answers,
        }
        self.users = 0
        self.threads = set()

    def nvmlInit(self):
        if "nvmlInit" in self.answers:
            raise self.answers["nvmlInit"]
        self.users += 1

    def nvmlShutdown(self):
        self.users -= 1

    def nvmlDeviceGetHandleByUUID(self, uuid):
        if uuid != UUID:
            raise FakeNvmlError("Not Found")
        return ("handle of", uuid)

    def nvmlDeviceGetClockInfo(self, handle, kind):
        assert handle == ("handle of", UUID)
        self.threads.add(threading.current_thread().name)
        return {self.NVML_CLOCK_SM: 1755, self.NVML_CLOCK_MEM: 2619}[kind]

    def nvmlDeviceGetPowerUsage(self, handle):
        return self._answer("nvmlDeviceGetPowerUsage")

    def nvmlDeviceGetTemperature(self, handle, sensor):
        assert sensor == self.NVML_TEMPERATURE_GPU
        return self._answer("nvmlDeviceGetTemperature")

    def nvmlDeviceGetTotalEnergyConsumption(self, handle):
        return self._answer("nvmlDeviceGetTotalEnergyConsumption")

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle):
        return self._answer("nvmlDeviceGetCurrentClocksEventReasons")

    def _answer(self, name):
        answer = self.answers[name]
        if isinstance(answer, Exception):
            raise answer
        return answer() if callable(answer) else answer


def running() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name == "gpu-sampler"]


def ticking(*times: float):
    """A clock that shows these times, one a look."""
    left = list(times)
    return lambda: left.pop(0)


def test_a_sample_in_the_units_of_its_names():
    nvml = FakeNvml(nvmlDeviceGetCurrentClocksEventReasons=0x4 | 0x20)
    with GpuSampler(UUID, nvml=nvml, interval_s=60, now=ticking(10.0, 10.5, 14.5)) as sampler:
        pass
    first, last = sampler.samples
    assert first == EnvironmentSample(
        time_s=-0.5,
        sm_clock_mhz=1755,
        memory_clock_mhz=2619,
        power_w=250.0,
        temperature_c=61,
        energy_j=5.0,
        clock_reasons=("sw_power_cap", "sw_thermal_slowdown"),
    )
    assert last.time_s == 4.0
    assert nvml.users == 0


def test_samples_come_from_a_daemon_thread_at_the_interval_until_the_end():
    nvml = FakeNvml()
    seen = []

    def look() -> int:
        seen.append(threading.current_thread())
        return 0

    nvml.answers["nvmlDeviceGetCurrentClocksEventReasons"] = look
    with GpuSampler(UUID, nvml=nvml, interval_s=0.002) as sampler:
        deadline = time.monotonic() + 20
        while len(seen) < 6 and time.monotonic() < deadline:
            time.sleep(0.002)
        assert running()
    assert not running()
    main = threading.current_thread()
    assert seen[0] is main
    assert seen[-1] is main
    inner = seen[1:-1]
    assert len(inner) >= 5
    assert all(thread.name == "gpu-sampler" and thread.daemon for thread in inner)
    times = [sample.time_s for sample in sampler.samples]
    assert len(times) == len(seen)
    assert times == sorted(times)
    assert times[0] <= 0 < times[1]
    # No two samples of the thread are closer than the interval.
    assert all(b - a >= 0.0019 for a, b in pairwise(times[1:-1]))


@pytest.mark.parametrize("error", [ValueError("step failed"), KeyboardInterrupt()])
def test_the_thread_stops_when_the_run_fails(error: BaseException):
    nvml = FakeNvml()
    with (
        pytest.raises(type(error)),
        GpuSampler(UUID, nvml=nvml, interval_s=0.001) as sampler,
    ):
        raise error
    assert not running()
    assert nvml.users == 0
    assert len(sampler.samples) >= 2


def test_what_the_driver_does_not_tell_is_none_and_the_rest_is_there():
    unsupported = FakeNvmlError("Not Supported")
    nvml = FakeNvml(
        nvmlDeviceGetPowerUsage=unsupported,
        nvmlDeviceGetTotalEnergyConsumption=unsupported,
        nvmlDeviceGetCurrentClocksEventReasons=AttributeError("an older library"),
    )
    with GpuSampler(UUID, nvml=nvml, interval_s=60) as sampler:
        pass
    for sample in sampler.samples:
        assert (sample.power_w, sample.energy_j, sample.clock_reasons) == (None, None, None)
        assert (sample.sm_clock_mhz, sample.temperature_c) == (1755, 61)


@pytest.mark.parametrize(
    ("uuid", "nvml"),
    [
        ("", FakeNvml()),  # a CPU
        ("GPU-another", FakeNvml()),
        (UUID, FakeNvml(nvmlInit=FakeNvmlError("Driver Not Loaded"))),
    ],
)
def test_nothing_is_sampled_without_the_gpu_or_its_driver(uuid: str, nvml: FakeNvml):
    with GpuSampler(uuid, nvml=nvml, interval_s=0.001) as sampler:
        assert not running()
    assert sampler.samples == ()
    assert nvml.users == 0


def test_nothing_is_sampled_without_the_library(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert load_nvml() is None
    with GpuSampler(UUID, interval_s=0.001) as sampler:
        assert not running()
    assert sampler.samples == ()


def test_an_installed_library_is_used(monkeypatch: pytest.MonkeyPatch):
    nvml = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    with GpuSampler(UUID, interval_s=60) as sampler:
        assert nvml.users == 1
    assert len(sampler.samples) == 2


class RunStoppedError(Exception):
    """Raised in the middle of a run."""


def test_a_measured_run_carries_the_samples_around_it(monkeypatch: pytest.MonkeyPatch):
    nvml = FakeNvml()
    joules = iter(range(10**6))
    nvml.answers["nvmlDeviceGetTotalEnergyConsumption"] = lambda: 1000 * next(joules)
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    point = make_point(
        model="dummy-tiny", dataset="synthetic", num_prompts=2, batch_size=2, max_new_tokens=8
    )
    workload = load_workload(point)
    engine = Engine.for_point(dataclasses.replace(point, engine=on_cpu(point.engine)))
    point = dataclasses.replace(point, engine=engine.config)
    assert engine.run(point, workload).environment == ()  # a CPU
    monkeypatch.setattr(runner, "_gpu_uuid", lambda device: UUID)
    record = engine.run(point, workload)
    samples = record.environment
    assert samples[0].time_s <= 0
    assert samples[-1].time_s >= record.duration_s
    assert [sample.energy_j for sample in samples] == list(range(len(samples)))
    metrics = compute_metrics(record)
    assert metrics.energy_per_output_token_j == (len(samples) - 1) / metrics.total_output_tokens

    def stop(recorder: object) -> None:
        assert running()
        raise RunStoppedError

    with pytest.raises(RunStoppedError):
        engine.run(point, workload, on_progress=stop)
    assert not running()
    assert nvml.users == 0


def on_cpu(config: EngineConfig) -> EngineConfig:
    return dataclasses.replace(config, device="cpu")


def test_the_real_library_has_what_is_asked_of_it():
    pynvml = pytest.importorskip("pynvml")
    for name in (*Nvml.__annotations__, *(n for n in vars(Nvml) if n.startswith("nvml"))):
        assert hasattr(pynvml, name)
    bits = {
        "applications_clocks_setting": pynvml.nvmlClocksEventReasonApplicationsClocksSetting,
        "display_clocks_setting": pynvml.nvmlClocksEventReasonDisplayClockSetting,
        "gpu_idle": pynvml.nvmlClocksEventReasonGpuIdle,
        "hw_power_brake_slowdown": pynvml.nvmlClocksEventReasonHwPowerBrakeSlowdown,
        "hw_slowdown": pynvml.nvmlClocksEventReasonHwSlowdown,
        "hw_thermal_slowdown": pynvml.nvmlClocksEventReasonHwThermalSlowdown,
        "sw_power_cap": pynvml.nvmlClocksEventReasonSwPowerCap,
        "sw_thermal_slowdown": pynvml.nvmlClocksEventReasonSwThermalSlowdown,
        "sync_boost": pynvml.nvmlClocksEventReasonSyncBoost,
    }
    assert bits == CLOCK_REASONS
    assert sum(CLOCK_REASONS.values()) == pynvml.nvmlClocksEventReasonAll
    # Here there may be no driver: then nothing is sampled, and nothing is raised.
    with GpuSampler(UUID, interval_s=60) as sampler:
        pass
    assert sampler.samples == ()
