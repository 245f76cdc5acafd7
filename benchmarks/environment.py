"""What a run measures, where, and of what."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.cases import Case
from benchmarks.ours import build_info
from benchmarks.results import Environment, device_name, driver_version


@dataclass(frozen=True)
class Options:
    """What to measure. ``peer_version`` is None without a peer, otherwise fbgemm_gpu has been imported."""

    name: str
    device: torch.device
    cases: list[Case]
    iterations: int
    commit: str
    peer_version: str | None
    wheel: Path | None = None


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
