"""What a benchmark run leaves: one JSON file, written here and nowhere edited."""

from __future__ import annotations

import json
import platform
import subprocess
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from benchmarks.timing import Timing

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Environment:
    """Where and of what a run was made; everything that a number depends on."""

    commit: str
    tbe_aot: str
    profile: str
    build_id: str
    torch: str
    python: str
    device: str
    driver: str
    peer: str | None


@dataclass(frozen=True)
class ForwardRow:
    """One forward configuration: times of ours and of the peer's implementations in ms, keyed "ours", "v1", "v2".

    ``min_bytes`` is the least a lookup can move (``cases.forward_bytes``).
    """

    case: str
    weighted: bool
    output_dtype: str
    index_dtype: str
    min_bytes: float
    times: dict[str, Timing]

    @property
    def ratio(self) -> float | None:
        """Time of the better of the peer's forwards over ours, if the peer was measured."""
        peers = [timing.median for name, timing in self.times.items() if name != "ours"]
        return min(peers) / self.times["ours"].median if peers else None

    def copy_share(self, copy_gbs: float) -> float:
        """Bandwidth by least bytes, as a share of the copy bandwidth of the same run."""
        return self.min_bytes / self.times["ours"].median / 1e6 / copy_gbs


@dataclass(frozen=True)
class BackwardRow:
    """One training configuration.

    ``lookup`` is "unweighted", "weighted" or "weighted, with gradient": the per-sample weights get a gradient in both
    implementations, or in neither. ``times`` has per implementation ("ours", "peer") "forward", "backward" and "both",
    GPU time in ms, and "wall", ms of an eager step with the host. ``min_bytes`` is the least a backward can move
    (``cases.backward_bytes``).
    """

    case: str
    lookup: str
    optimizer: str
    min_bytes: float
    times: dict[str, dict[str, Timing]]

    def ratio(self, what: str) -> float | None:
        """The peer's time over ours, if the peer was measured."""
        if "peer" not in self.times:
            return None
        return self.times["peer"][what].median / self.times["ours"][what].median

    def copy_share(self, copy_gbs: float) -> float:
        """Bandwidth of the backward by least bytes, as a share of the copy bandwidth of the same run."""
        return self.min_bytes / self.times["ours"]["backward"].median / 1e6 / copy_gbs


@dataclass(frozen=True)
class OptionRow:
    """Steps by the operators, without autograd, ms.

    Keys of ``times`` are "plain", and what is done otherwise: "hoisted" transposes the indices after the forward,
    "fused" and "two launches" ask for one launch that sums and updates long runs and for two, "stochastic" rounds by
    chance, "general" forbids the kernels of a small table, where there is one table; then "forward", "backward" and "both".
    """

    case: str
    lookup: str
    times: dict[str, dict[str, Timing]]


@dataclass(frozen=True)
class KernelRow:
    """A kernel of our training step: its share, in us, and its launches per step, by torch's profiler.

    Launches overlap, and one that waits for another counts its waiting, so that they may add up to more than the step.
    """

    case: str
    lookup: str
    kernel: str
    microseconds: float
    launches: float


@dataclass(frozen=True)
class SortRow:
    """Ordering the lookups of a case by row, ms: our ``transpose_indices``, and torch's stable sort of the same keys."""

    case: str
    lookups: int
    key_bits: int
    times: dict[str, Timing]


@dataclass(frozen=True)
class MemoryRow:
    """Bytes that a backward takes over what is allocated before it, by implementation."""

    case: str
    lookup: str
    bytes: dict[str, int]


@dataclass(frozen=True)
class RunLengthRow:
    """Unique rows of a case's input set, and the share of its lookups by run length (``cases.RUN_LENGTHS``)."""

    case: str
    lookups: int
    unique_rows: int
    shares: list[float]


@dataclass(frozen=True)
class BoundsRow:
    """What checking bounds costs.

    ``times`` (ms) and ``host`` (us of host time, ours alone) by call: "forward" and "check" apart, "check and forward" one
    operator after the other, ``forward_checked`` by its ``fused_checks``, and the peer's forward without and with its check.
    """

    case: str
    index_dtype: str
    times: dict[str, Timing]
    host: dict[str, Timing] = field(default_factory=dict)


@dataclass(frozen=True)
class PathRow:
    """A narrow path beside the general one at one size, ms: "general", "narrow" and "auto".

    ``size`` is that of ``field`` ("mean_length", "batch" or "rows"); ``series`` says what stays the same over the sizes;
    ``taken`` is the one of the two that "auto" takes.
    """

    path: str
    series: str
    field: str
    size: int
    taken: str
    times: dict[str, Timing]


@dataclass(frozen=True)
class HostRow:
    """Host microseconds of one call without synchronisation."""

    call: str
    microseconds: Timing


@dataclass(frozen=True)
class FirstCall:
    """Medians over fresh processes, in ms; torch was imported and the CUDA context existed before.

    Importing tbe_aot, the first forward with its result waited for, and a later one.
    """

    processes: int
    import_ms: float
    first_call_ms: float
    later_call_ms: float


@dataclass
class Results:
    """A whole run.

    ``errors`` are configurations that failed, or gave other numbers than the peer; ``peer_errors`` are those that an
    implementation of the peer refused.
    """

    name: str
    environment: Environment
    method: dict[str, int | str]
    copy_gbs: float
    forward: list[ForwardRow] = field(default_factory=list)
    bounds: list[BoundsRow] = field(default_factory=list)
    backward: list[BackwardRow] = field(default_factory=list)
    options: list[OptionRow] = field(default_factory=list)
    kernels: list[KernelRow] = field(default_factory=list)
    sorts: list[SortRow] = field(default_factory=list)
    memory: list[MemoryRow] = field(default_factory=list)
    run_lengths: list[RunLengthRow] = field(default_factory=list)
    paths: list[PathRow] = field(default_factory=list)
    host: list[HostRow] = field(default_factory=list)
    first_call: FirstCall | None = None
    sizes: dict[str, int] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    peer_errors: dict[str, str] = field(default_factory=dict)

    def write(self, path: Path) -> None:
        """Write the file, whole or not at all."""
        path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps({"schema_version": SCHEMA_VERSION, **asdict(self)}, indent=1)
        partial = path.with_suffix(".partial")
        partial.write_text(text + "\n", encoding="utf-8")
        partial.replace(path)

    @staticmethod
    def read(path: Path) -> Results:
        """Read a file that ``write`` wrote.

        Raises:
            ValueError: the file has another schema version.
        """
        data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        version = data.pop("schema_version", None)
        if version != SCHEMA_VERSION:
            message = f"{path}: schema_version is {version}, this program reads {SCHEMA_VERSION}"
            raise ValueError(message)
        return Results(
            name=data["name"],
            environment=Environment(**data["environment"]),
            method=data["method"],
            copy_gbs=data["copy_gbs"],
            forward=[ForwardRow(**_with_timings(row)) for row in data["forward"]],
            bounds=[BoundsRow(**_with_timings(row)) for row in data["bounds"]],
            # What a benchmark of the forward leaves has none of these.
            backward=[BackwardRow(**_with_timings(row)) for row in data.get("backward", [])],
            options=[OptionRow(**_with_timings(row)) for row in data.get("options", [])],
            kernels=[KernelRow(**row) for row in data.get("kernels", [])],
            sorts=[SortRow(**_with_timings(row)) for row in data.get("sorts", [])],
            memory=[MemoryRow(**row) for row in data.get("memory", [])],
            run_lengths=[RunLengthRow(**row) for row in data.get("run_lengths", [])],
            paths=[PathRow(**_with_timings(row)) for row in data.get("paths", [])],
            host=[HostRow(row["call"], Timing(**row["microseconds"])) for row in data["host"]],
            first_call=FirstCall(**data["first_call"]) if data["first_call"] else None,
            sizes=data["sizes"],
            errors=data["errors"],
            peer_errors=data["peer_errors"],
        )


def _with_timings(row: dict[str, Any]) -> dict[str, Any]:
    timed: dict[str, Any] = {name: _timings(row[name]) for name in ("times", "host") if name in row}
    return {**row, **timed}


def _timings(entry: dict[str, Any]) -> Any:
    """A timing, or timings by name, however deep."""
    if "median" in entry:
        return Timing(**entry)
    return {name: _timings(inner) for name, inner in entry.items()}


def current_commit() -> str:
    """The checkout's commit, with "+" if files differ from it; "unknown" outside a checkout."""
    folder = Path(__file__).parent
    try:
        commit = _output(["git", "-C", str(folder), "rev-parse", "HEAD"])
        changed = _output(
            ["git", "-C", str(folder), "status", "--porcelain", "--untracked-files=no"]
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return commit + ("+" if changed else "")


def device_name(device: torch.device) -> str:
    """The GPU's name, or the processor's architecture."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"CPU {platform.machine()}"


def driver_version(device: torch.device) -> str:
    """The NVIDIA driver's version; "none" on the CPU."""
    if device.type != "cuda":
        return "none"
    try:
        query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        return _output(query).splitlines()[0]
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _output(command: list[str]) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
