"""What is known of a call, and what follows from it before a kernel is asked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from .errors import AuditError
from .manifest import AxisValue, Kernel, Manifest

# As PyTorch and as the kernels name them.
DTYPES = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}
WIDTHS = {"int32": 32, "int64": 64}
# A vector of 16 bytes, in elements.
VECTOR = {"fp32": 4, "fp16": 8, "bf16": 8}
# What the module's arguments of these names may be.
CHOICES = {
    "bounds_check": ("none", "ignore", "warning", "fatal"),
    "fused_checks": ("auto", "never", "always"),
    "small_tables": ("auto", "never", "always"),
    "fused_long_runs": ("auto", "never", "always"),
    "work_stealing": ("never", "always"),
}


@dataclass(frozen=True)
class Call:
    """What is known of a call of the module; None is unknown. Its options have the module's defaults.

    All features have one ``dim``. ``lookups`` and ``mean_length`` are of the whole call, ``batch`` bags of a feature, ``rows`` of all tables
    together. ``aligned`` is whether rows of weights and gradient start at multiples of 16 bytes, None: as the module lays them out.
    ``gradient`` is by default of the ``output``'s dtype. ``multiprocessors`` are the GPU's. ``axes`` are values of axes by name that override
    the rest.
    """

    weights: str | None = None
    output: str = "fp32"
    gradient: str | None = None
    indices: str | None = None
    dim: int | None = None
    weighted: bool = False
    mean: bool = False
    aligned: bool | None = None
    mean_length: float | None = None
    lookups: int | None = None
    rows: int | None = None
    optimizer: str | None = None
    stochastic_rounding: bool = False
    batch: int | None = None
    features: int = 1
    multiprocessors: int | None = None
    bounds_check: str = "warning"
    fused_checks: str = "auto"
    small_tables: str = "auto"
    fused_long_runs: str = "auto"
    work_stealing: str = "never"
    axes: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Facts:
    """A call beside a build: numbers that follow from one another, dtypes as the kernels name them.

    ``weighted`` is what kernels see: without lookups there are no per-sample weights. ``bucket`` is the group's. ``padded``: rows of the tables
    start at multiples of 16 bytes; ``aligned``: those of the gradient do, too. ``assigned`` are values of the kernel's axes.
    """

    manifest: Manifest
    arch: str
    kernel: str
    call: Call
    dtype: str | None
    gradient: str | None
    index_width: int | None
    bucket: int | None
    weighted: bool
    factored: bool
    padded: bool
    aligned: bool | None
    formula: str | None
    lookups: int | None
    bags: int | None
    mean_length: float | None
    shape: str | None = None
    assigned: Mapping[str, AxisValue] = field(default_factory=dict)

    def assign(self, kernel: Kernel, values: Mapping[str, AxisValue]) -> Facts:
        """The facts of calls for which the kernel's axes have these values."""
        found: dict[str, object] = {"assigned": {**self.assigned, **values}}
        for axis in kernel.axes:
            known = _OF_AXES.get(axis.name)
            if known is None or axis.name not in values:
                continue
            fact, by_label = known
            value = values[axis.name]
            found[fact] = axis.labels[axis.values.index(value)] if by_label else value
        if "padded" in found:
            found["aligned"] = found["padded"]
        return replace(self, **found)  # type: ignore[arg-type]  # fields by name

    @cached_property
    def kernels(self) -> Mapping[str, Kernel]:
        """The kernels of the build that are made for the arch."""
        return {
            name: kernel for name, kernel in self.manifest.kernels.items() if kernel.on(self.arch)
        }


# Which fact an axis is, and whether as the label or the value. Of kernels without a gradient, `aligned` is of tables alone.
_OF_AXES = {
    "weight_dtype": ("dtype", True),
    "bf16": ("dtype", True),
    "gradient_dtype": ("gradient", True),
    "index_width": ("index_width", False),
    "bucket": ("bucket", False),
    "weighted": ("weighted", False),
    "factored": ("factored", False),
    "aligned": ("padded", False),
    "optimizer": ("formula", True),
    "shape": ("shape", True),
}


def facts_of(manifest: Manifest, arch: str, kernel: str, call: Call) -> Facts:
    """What follows from a call.

    Raises:
        AuditError: a value means nothing, or two contradict each other.
    """
    for name, allowed in CHOICES.items():
        value = getattr(call, name)
        if value not in allowed:
            raise AuditError(f"{name} {value!r}: allowed are {', '.join(allowed)}")
    if call.indices is not None and call.indices not in WIDTHS:
        raise AuditError(f"dtype of the indices {call.indices!r}: allowed are {', '.join(WIDTHS)}")
    dtype = None if call.weights is None else _dtype(call.weights, "weights")
    lookups, bags, mean_length = _counts(call)
    weighted = call.weighted and lookups != 0
    return Facts(
        manifest=manifest,
        arch=arch,
        kernel=kernel,
        call=call,
        dtype=dtype,
        gradient=_gradient(call, dtype),
        index_width=None if call.indices is None else WIDTHS[call.indices],
        bucket=_bucket(manifest, call),
        weighted=weighted,
        factored=weighted or call.mean,
        padded=call.aligned is not False,
        aligned=_aligned(call, dtype),
        formula=None
        if call.optimizer is None
        else manifest.optimizers.get(call.optimizer, call.optimizer),
        lookups=lookups,
        bags=bags,
        mean_length=mean_length,
    )


def _dtype(name: str, whose: str) -> str:
    found = DTYPES.get(name, name)
    if found not in DTYPES.values():
        raise AuditError(
            f"dtype of the {whose} {name!r}: allowed are {', '.join([*DTYPES, *DTYPES.values()])}"
        )
    return found


def _gradient(call: Call, weights: str | None) -> str | None:
    """As kernels read it: there are those for the dtype of the weights and for fp32."""
    given = _dtype(call.output, "output")
    if call.gradient is not None:
        given = _dtype(call.gradient, "gradient")
    if given == "fp32":
        return given
    if weights is None:
        return None
    return given if given == weights else "fp32"


def _bucket(manifest: Manifest, call: Call) -> int | None:
    forward = manifest.kernels.get("forward")
    if call.dim is None or forward is None:
        return None
    values = next((axis.values for axis in forward.axes if axis.name == "bucket"), [])
    return min((v for v in values if isinstance(v, int) and v >= call.dim), default=None)


def _aligned(call: Call, dtype: str | None) -> bool | None:
    """Rows of the gradient lie side by side without padding: they are vectors where the dim is."""
    if call.aligned is not None or call.dim is None:
        return call.aligned
    units = {VECTOR[dtype]} if dtype else set(VECTOR.values())
    answers = {call.dim % unit == 0 for unit in units}
    return answers.pop() if len(answers) == 1 else None


def _counts(call: Call) -> tuple[int | None, int | None, float | None]:
    bags = None if call.batch is None else call.batch * call.features
    lookups, mean_length = call.lookups, call.mean_length
    if lookups is None and mean_length == 0:
        lookups = 0
    if bags is None:
        return lookups, bags, 0 if lookups == 0 else mean_length
    if mean_length is not None:
        implied = round(mean_length * bags)
        if lookups is not None and lookups != implied:
            raise AuditError(
                f"{lookups} lookups of {bags} bags have a mean length of {lookups / max(bags, 1):g}, not {mean_length:g}"
            )
        lookups = implied
    if lookups is not None and bags > 0:
        mean_length = lookups / bags
    return lookups, bags, mean_length
