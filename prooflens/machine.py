"""The machine: devices, threads, cores, and the versions that a result was made with."""

from interp.environment import environment
from interp.machine import check_device
from interp.ray_tasks import need_backend
from interp.threads import one_thread
from trained.stack_runner import cores

__all__ = [
    "check_device",
    "cores",
    "environment",
    "need_backend",
    "one_thread",
]
