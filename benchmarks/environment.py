"""Where and of what a run is made."""

from __future__ import annotations

import platform

import torch

from benchmarks.ours import build_info
from benchmarks.results import Environment, device_name, driver_version


def describe_environment(
    commit: str, device: torch.device, peer_version: str | None
) -> Environment:
    """What the results say of the machine, the versions and the build."""
    info = build_info()
    return Environment(
        commit=commit,
        tbe_aot=info.version,
        profile=info.profile,
        build_id=info.build_id,
        torch=torch.__version__,
        python=platform.python_version(),
        device=device_name(device),
        driver=driver_version(device),
        peer=peer_version,
    )
