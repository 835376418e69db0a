"""The facts about a device; each kind of device provides some of them (`Device.facts`)."""

from dataclasses import dataclass

from embstore.stats import gauge, info


@dataclass
class DeviceFacts:
    """The device that caches and computes the rows, as of the last stats. Null: not applicable."""

    model: str | None = info("Name of its maker.", metric="device")
    memory_bytes: int | None = gauge("Memory of the device; of cpu, of the host.")
    memory_free_bytes: int | None = gauge("Free memory of the device.")
    scratch_bytes: int | None = gauge("Memory for calls, besides the cache.")
    threads: int | None = gauge("Threads that share a call.")
    multiprocessors: int | None = gauge("Multiprocessors of a GPU.")
    driver_version: str | None = info("Version of a GPU's driver.", metric="device")
    runtime_version: str | None = info("Version of the CUDA runtime.", metric="device")
    compile_seconds: float | None = gauge("Time that compiling kernels took.")
