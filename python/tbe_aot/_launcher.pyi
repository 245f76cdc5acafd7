# ruff: noqa: PYI021 - a native module has its documentation in its stub
"""The launcher core: what this build holds, what is loaded, and how calls are planned.

Pointers are addresses on the device that a plan will run on, 0 for an absent array; nothing here reads the memory
behind them, except ``copy_to_host``. Errors of the driver, of packs and of the planner are RuntimeError, unknown
names are ValueError.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

profile: str
"""The profile of this build: which variants have a cubin."""
build_id: str
"""SHA-256 over everything that this build holds."""

class Arch:
    """A GPU architecture of this build."""

    @property
    def name(self) -> str: ...
    @property
    def major(self) -> int: ...
    @property
    def minor(self) -> int: ...
    @property
    def pack_file(self) -> str: ...
    @property
    def index_sha256(self) -> str: ...

class Blob:
    """A cubin in a pack; offset and size in bytes."""

    @property
    def sha256(self) -> str: ...
    @property
    def offset(self) -> int: ...
    @property
    def size(self) -> int: ...

class Pack:
    """The pack of one arch."""

    @property
    def arch(self) -> str: ...
    @property
    def path(self) -> str: ...
    @property
    def file_size(self) -> int: ...
    @property
    def blobs(self) -> list[Blob]: ...

class Param:
    """A kernel parameter and its place in the argument block, in bytes."""

    @property
    def name(self) -> str: ...
    @property
    def type(self) -> str: ...
    @property
    def offset(self) -> int: ...
    @property
    def size(self) -> int: ...

class Kernel:
    """A kernel: its axes with their labels, its parameters, the number of its variants."""

    @property
    def name(self) -> str: ...
    @property
    def axes(self) -> dict[str, list[str]]: ...
    @property
    def params(self) -> list[Param]: ...
    @property
    def args_size(self) -> int: ...
    @property
    def variant_count(self) -> int: ...

class Variant:
    """A variant on one arch; ``blob`` is its cubin's place in the pack, None when this build lacks it."""

    @property
    def name(self) -> str: ...
    @property
    def kernel(self) -> str: ...
    @property
    def arch(self) -> str: ...
    @property
    def entry(self) -> str: ...
    @property
    def blob(self) -> int | None: ...
    @property
    def num_warps(self) -> int: ...
    @property
    def shared_bytes(self) -> int: ...
    @property
    def constants(self) -> dict[str, int]: ...

class Launch:
    """A planned launch; ``args`` are the packed arguments, laid out as the kernel's params say."""

    @property
    def kernel(self) -> str: ...
    @property
    def variant(self) -> Variant: ...
    @property
    def grid(self) -> tuple[int, int, int]: ...
    @property
    def block(self) -> tuple[int, int, int]: ...
    @property
    def shared_bytes(self) -> int: ...
    @property
    def args(self) -> bytes: ...

class Clear:
    """Device memory that is set to zero before the first launch."""

    @property
    def address(self) -> int: ...
    @property
    def bytes(self) -> int: ...

class Plan:
    """What a call launches, in order, and a sentence for each launch that says why."""

    @property
    def arch(self) -> str: ...
    @property
    def clear(self) -> Clear | None: ...
    @property
    def launches(self) -> list[Launch]: ...
    @property
    def reasons(self) -> list[str]: ...

class Loaded:
    """A variant that is loaded on a device."""

    @property
    def device(self) -> int: ...
    @property
    def variant(self) -> Variant: ...

def archs() -> list[Arch]:
    """The archs of this build."""

def packs() -> list[Pack]:
    """The packs of this build, opened and checked."""

def verify() -> dict[str, int]:
    """Check every cubin of every pack against its SHA-256; the number of cubins by arch."""

def kernels() -> list[Kernel]:
    """The kernels of this build."""

def variants(kernel: str, arch: str) -> list[Variant]:
    """All variants of a kernel on an arch, in this build or not; empty when the kernel is not made for the arch."""

def buckets() -> list[int]:
    """The buckets of the forward kernel, ascending; a feature belongs to the first that is not below its dim."""

@dataclass(kw_only=True)
class ForwardRequest:
    """A pooled lookup, as ``plan_forward`` plans it.

    This and the other requests are no dataclasses at run time, but behave as one to a type checker: every field is a
    keyword of the constructor and an attribute.

    Args:
        arch: such as ``sm90``.
        weight_dtype: ``fp32``, ``fp16`` or ``bf16``.
        output_dtype: likewise.
        index_width: bits of indices and offsets, 32 or 64.
        mean: divide by the bag length.
        output: [batch_size, output width], or 1-D with VBE.
        weights: all tables, one after another.
        features: int64 [T, 8].
        indices: [lookups].
        offsets: [total_bags + 1].
        per_sample_weights: fp32 [lookups]; 0 = unweighted.
        vbe_bag_offsets: int64 [T + 1]; 0 = not VBE.
        vbe_output_offsets: int64 [total_bags]; 0 = not VBE.
        lookups: the number of indices.
        batch_size: bags per feature; VBE: most bags of any feature.
        total_bags: bags of all features.
        small_tables: ``auto``, ``never`` or ``always``, as in the operator.
        work_stealing: whether the operator's argument is ``always``.
        fused_checks: likewise; of importance only with a check.
    """

    arch: str
    weight_dtype: str = "fp32"
    output_dtype: str = "fp32"
    index_width: int = 64
    mean: bool = False
    output: int = 0
    weights: int = 0
    features: int = 0
    indices: int = 0
    offsets: int = 0
    per_sample_weights: int = 0
    vbe_bag_offsets: int = 0
    vbe_output_offsets: int = 0
    lookups: int = 0
    batch_size: int = 0
    total_bags: int = 0
    small_tables: str = "auto"
    work_stealing: bool = False
    fused_checks: str = "auto"

def plan_forward(
    request: ForwardRequest, layout: Sequence[int], check: CheckBoundsRequest | None = None
) -> Plan:
    """Plan a pooled lookup; ``layout`` is the operators' argument.

    With a ``check`` that is planned first, perhaps as a part of the lookup, and what it checks is looked up rather than
    ``indices`` and ``offsets`` of the request.
    """

@dataclass(kw_only=True)
class CheckBoundsRequest:
    """The bounds check: copies of indices [lookups] and offsets [offsets_numel] with what was bad put right.

    ``report`` is int64 [4]: bad offsets, offsets_numel - the first bad one's position, lookups - the first invalid
    index' position (0: none), and the number of invalid indices when there is no ``invalid_count`` (int64 [1], added
    to).
    """

    arch: str
    index_width: int = 64
    indices: int = 0
    offsets: int = 0
    features: int = 0
    vbe_bag_offsets: int = 0
    indices_out: int = 0
    offsets_out: int = 0
    report: int = 0
    invalid_count: int = 0
    feature_count: int = 0
    lookups: int = 0
    offsets_numel: int = 0
    batch_size: int = 0

def plan_check_bounds(request: CheckBoundsRequest) -> Plan:
    """Plan the bounds check."""

@dataclass(kw_only=True)
class TransposeRequest:
    """What ``plan_transpose`` plans: who uses which row.

    Args:
        arch: such as ``sm90``.
        index_width: bits of indices and offsets, 32 or 64.
        mean: lookups count 1 / bag length.
        features: int64 [T, 8].
        indices: [lookups].
        offsets: [total_bags + 1].
        per_sample_weights: fp32 [lookups]; 0 = unweighted.
        vbe_bag_offsets: int64 [T + 1]; 0 = not VBE.
        vbe_output_offsets: int64 [total_bags]; 0 = not VBE.
        transposed: int32, what ``transpose_indices`` returns.
        scratch: ``transpose_scratch_bytes`` bytes, at a multiple of 16.
        lookups: the number of indices.
        batch_size: bags per feature; VBE: most bags of any feature.
        total_bags: bags of all features.
    """

    arch: str
    index_width: int = 64
    mean: bool = False
    features: int = 0
    indices: int = 0
    offsets: int = 0
    per_sample_weights: int = 0
    vbe_bag_offsets: int = 0
    vbe_output_offsets: int = 0
    transposed: int = 0
    scratch: int = 0
    lookups: int = 0
    batch_size: int = 0
    total_bags: int = 0

def transpose_scratch_bytes(request: TransposeRequest, layout: Sequence[int]) -> int:
    """How much memory ``plan_transpose`` works in, in bytes."""

def plan_transpose(request: TransposeRequest, layout: Sequence[int]) -> Plan:
    """Plan ``transpose_indices``."""

@dataclass(kw_only=True)
class BackwardUpdateRequest:
    """One step of the optimizer for every row that was looked up.

    Args:
        arch: such as ``sm90``.
        multiprocessors: of the device.
        weight_dtype: ``fp32``, ``fp16`` or ``bf16``.
        gradient_dtype: ``fp32`` or that of the weights.
        optimizer: the operator's argument.
        factored: with per-sample weights, or MEAN.
        vbe: the gradient is 1-D.
        weights: all tables, one after another.
        gradient: of the result of the lookup.
        momentum1: as in the operator; 0 = none.
        momentum2: as in the operator; 0 = none.
        step: as in the operator; 0 = none.
        learning_rate: fp32 [1].
        gradient_scale: fp32 [1]; 0 = none.
        found_inf: fp32 [1]; 0 = none.
        rounding_seed: as in the operator; 0 = none.
        features: int64 [T, 8].
        transposed: what ``transpose_indices`` returned, or the transposition that is planned first writes.
        partials: ``partials_bytes`` bytes, at a multiple of 16; for the kernels of a small table what they sum up in.
        counters: ``counters_bytes`` bytes, cleared by the plan; directly before the ``scratch`` of a transposition that
            is planned first.
        lookups: the number of indices.
        total_bags: bags of all features.
        gradient_numel: elements of the gradient.
        eps: as in the operator.
        beta1: as in the operator.
        beta2: as in the operator.
        l2_decay: weight decay of that mode.
        decoupled_decay: weight decay of that mode.
        clip: bound of the gradient's elements; 0 = none.
        small_tables: ``auto``, ``never`` or ``always``, as in the operator.
        fused_long_runs: likewise.
    """

    arch: str
    multiprocessors: int = 1
    weight_dtype: str = "fp32"
    gradient_dtype: str = "fp32"
    optimizer: str = "sgd"
    factored: bool = False
    vbe: bool = False
    weights: int = 0
    gradient: int = 0
    momentum1: int = 0
    momentum2: int = 0
    step: int = 0
    learning_rate: int = 0
    gradient_scale: int = 0
    found_inf: int = 0
    rounding_seed: int = 0
    features: int = 0
    transposed: int = 0
    partials: int = 0
    counters: int = 0
    lookups: int = 0
    total_bags: int = 0
    gradient_numel: int = 0
    eps: float = 0.0
    beta1: float = 0.0
    beta2: float = 0.0
    l2_decay: float = 0.0
    decoupled_decay: float = 0.0
    clip: float = 0.0
    small_tables: str = "auto"
    fused_long_runs: str = "auto"

def partials_bytes(lookups: int, layout: Sequence[int]) -> int:
    """How much memory the sums of chunks take in ``plan_backward_update``, in bytes."""

def counters_bytes(request: BackwardUpdateRequest, layout: Sequence[int]) -> int:
    """How much memory the counts of chunks take in ``plan_backward_update``, in bytes."""

def plan_backward_update(
    request: BackwardUpdateRequest,
    layout: Sequence[int],
    transpose: TransposeRequest | None = None,
) -> Plan:
    """Plan ``backward_update``; what ``transpose`` describes is planned first."""

@dataclass(kw_only=True)
class SampleWeightsGradientRequest:
    """The gradient of the per-sample weights, fp32 [lookups] at ``result``; the rest is as in ``ForwardRequest``."""

    arch: str
    weight_dtype: str = "fp32"
    gradient_dtype: str = "fp32"
    index_width: int = 64
    mean: bool = False
    result: int = 0
    gradient: int = 0
    weights: int = 0
    features: int = 0
    indices: int = 0
    offsets: int = 0
    vbe_bag_offsets: int = 0
    vbe_output_offsets: int = 0
    lookups: int = 0
    batch_size: int = 0
    total_bags: int = 0

def plan_per_sample_weights_gradient(
    request: SampleWeightsGradientRequest, layout: Sequence[int]
) -> Plan:
    """Plan the gradient of the per-sample weights."""

def launch(plan: Plan, device: int, stream: int = 0) -> None:
    """Load what the plan needs on a device and launch it on a stream (a CUstream)."""

def device_arch(device: int) -> str:
    """The arch whose cubins run on a CUDA device."""

def device_multiprocessors(device: int) -> int:
    """The multiprocessors of a CUDA device."""

def preload(
    device: int, kernel: str, axes: Mapping[str, Sequence[str]] = ..., built_only: bool = False
) -> list[str]:
    """Load variants of a kernel on a device, so that a graph capture loads nothing; the names of the variants.

    Args:
        device: CUDA device.
        kernel: name of the kernel.
        axes: allowed labels by axis; an axis that is not there may have any.
        built_only: skip variants that this build lacks; otherwise one of them is an error.
    """

def is_capturing(device: int, stream: int = 0) -> bool:
    """Whether a stream is being captured into a CUDA graph."""

def copy_to_host(source: int, bytes: int, device: int, stream: int = 0) -> bytes:  # noqa: A002
    """Copy device memory behind the work on a stream, and wait for it."""

def loaded() -> list[Loaded]:
    """The variants loaded so far, by device."""
