"""The launcher and the driver: what it asks for, in which context, how often, and what it says when that fails."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import threading
from math import ceil
from pathlib import Path
from typing import Any

import pytest

from tests.launcher.artifacts import ARCHS, LARGE_SHARED, MISSING, PROFILE, SMALL_SHARED
from tests.launcher.planned import plan_forward
from tests.launcher.support import (
    DRIVER_NAME,
    Built,
    Child,
    Process,
    compile_driver,
    error_of,
    process,
)

STREAM = 0x5000
LAUNCH = "cuLaunchKernelEx"
LOADING = ("cuLibraryLoadData", "cuLibraryGetKernel", "cuKernelGetFunction", "cuKernelSetAttribute")

# One group of bucket 16 and one of 128; 2 and 1 features, 6 bags each, 60 lookups a bag.
FORWARD = {
    "arch": "sm90",
    "layout": [1, 3, 160, 10_000, 90, 40, 128, 1, 1, 16, 1, 2],
    "weight_dtype": "fp16",
    "output_dtype": "bf16",
    "mean": True,
    "output": 0x1000,
    "weights": 0x2000,
    "features": 0x3000,
    "indices": 0x4001,
    "offsets": 0x5002,
    "per_sample_weights": 0x6003,
    "lookups": 1080,
    "batch_size": 6,
    "total_bags": 18,
}
CHECK_BOUNDS = {
    "arch": "sm90",
    "indices": 0x1000,
    "offsets": 0x2000,
    "features": 0x3000,
    "indices_out": 0x4000,
    "offsets_out": 0x5000,
    "report": 0x6000,
    "feature_count": 3,
    "lookups": 1080,
    "offsets_numel": 19,
    "batch_size": 6,
}


def _forward(child: Child, **changes: Any) -> Any:
    return plan_forward(child, {**FORWARD, **changes})


def _check_bounds(child: Child) -> Any:
    return child.launcher.plan_check_bounds(child.launcher.CheckBoundsRequest(**CHECK_BOUNDS))


def _launch_forward(child: Child, device: int = 0, **changes: Any) -> None:
    child.launcher.launch(_forward(child, **changes), device, STREAM)


# --- What reaches the driver ---------------------------------------------------------------------


def _recorded_forward(child: Child) -> Any:
    plan = _forward(child)
    child.launcher.launch(plan, 0, STREAM)
    variants = [launch.variant for launch in plan.launches]
    return [(v.num_warps, v.constants["BAGS"]) for v in variants], child.standin.take(LAUNCH)


def test_arguments_grid_block_stream_and_shared_memory(fresh: Process) -> None:
    # The last group first.
    tuning, (second, first) = fresh.run(_recorded_forward)
    (_, second_bags), (first_warps, first_bags) = tuning
    assert first.details["cubin"] == "forward__fp16_d128_i64_weighted_aligned_long_trusting sm90"
    assert first.details["grid"] == [ceil(6 / first_bags), 1, 1]
    assert first.details["block"] == [32 * first_warps, 1, 1]
    assert first.details["shared"] == SMALL_SHARED
    assert first.details["stream"] == STREAM
    assert first.device == 0
    args = [bytes.fromhex(arg) for arg in first.details["args"]]
    pointers = [0x1000, 0x2000, 0x3000, 0x4001, 0x5002, 0x6003, 0, 0]
    assert [struct.unpack("<Q", arg)[0] for arg in args[:8]] == pointers
    # batch_size, output_stride, output_dtype (bf16), mean, vbe, overlap
    assert [struct.unpack("<i", arg)[0] for arg in args[8:14]] == [6, 160, 2, 1, 0, 2]
    # invalid_count, report and the number of indices, which only a check needs; the two scratch pointers.
    assert [struct.unpack("<Q", arg)[0] for arg in args[14:]] == [0, 0, 0, 0, 0]
    assert first.details["overlaps"]

    assert second.details["cubin"] == "forward__fp16_d16_i64_weighted_aligned_long_trusting sm90"
    assert second.details["grid"] == [ceil(6 / second_bags), 2, 1]
    assert struct.unpack("<i", bytes.fromhex(second.details["args"][13])) == (1,)
    assert not second.details["overlaps"]
    # The second group's row of the feature table: one row of 8 int64 further.
    assert struct.unpack("<Q", bytes.fromhex(second.details["args"][2]))[0] == 0x3000 + 64


def _plan_and_record(child: Child) -> Any:
    plan = _check_bounds(child)
    params = {kernel.name: kernel.params for kernel in child.launcher.kernels()}
    planned = [
        [launch.args[p.offset : p.offset + p.size].hex() for p in params[launch.kernel]]
        for launch in plan.launches
    ]
    clear = (plan.clear.address, plan.clear.bytes)
    child.launcher.launch(plan, 0, STREAM)
    return planned, clear, child.standin.take("cuMemsetD32Async", "cuKernelSetAttribute", LAUNCH)


def test_bounds_check_clears_its_report_before_the_first_launch(fresh: Process) -> None:
    planned, clear, calls = fresh.run(_plan_and_record)
    assert [call.function for call in calls] == [
        "cuKernelSetAttribute",
        "cuMemsetD32Async",
        *[LAUNCH] * 3,
    ]
    attribute, memset, *launches = calls
    assert clear == (0x6000, 32)
    assert memset.details == {"address": 0x6000, "value": 0, "count": 8, "stream": STREAM}
    assert [launch.details["args"] for launch in launches] == planned
    assert [launch.details["cubin"].split("__")[0] for launch in launches] == [
        "check_offsets",
        "repair_offsets",
        "check_indices",
    ]
    # More than 48 KB of shared memory must be asked for, once per kernel and device.
    large = LARGE_SHARED["repair_offsets__i64"]
    assert attribute.details == {
        "attribute": 8,
        "value": large,
        "cubin": "repair_offsets__i64 sm90",
    }
    assert launches[1].details["shared"] == large


def _plan_update(child: Child) -> tuple[Any, list[str]]:
    """An update of two groups by Adam, the lookups transposed in the same plan; and the names of its variants."""
    layout = [1, 3, 160, 10_000, 90, 40, 16, 2, 2, 128, 2, 1]
    lookups = {"arch": "sm90", "lookups": 1080, "batch_size": 6, "total_bags": 18}
    transpose = child.launcher.TransposeRequest(**lookups, transposed=0x10000, scratch=0x20000)
    update = child.launcher.BackwardUpdateRequest(
        arch="sm90",
        multiprocessors=child.launcher.device_multiprocessors(0),
        weight_dtype="fp16",
        optimizer="adam",
        transposed=0x10000,
        partials=0x40000,
        lookups=1080,
        total_bags=18,
        gradient_numel=960,
    )
    plan = child.launcher.plan_backward_update(update, layout, transpose)
    return plan, [launch.variant.name for launch in plan.launches]


def _recorded_update(child: Child) -> Any:
    plan, variants = _plan_update(child)
    clear = plan.clear.bytes
    child.standin.take()
    child.launcher.launch(plan, 0, STREAM)
    return variants, clear, child.standin.take()


def test_an_update_loads_everything_first_and_never_waits(fresh: Process) -> None:
    variants, clear, calls = fresh.run(_recorded_update)
    functions = [call.function for call in calls]
    memset = functions.index("cuMemsetD32Async")
    assert calls[memset].details["count"] == clear // 4
    assert not set(functions[memset:]) & set(LOADING)
    loaded = [
        call.details["cubin"].split()[0] for call in calls if call.function == "cuLibraryLoadData"
    ]
    assert loaded == list(dict.fromkeys(variants))
    launches = [call for call in calls if call.function == LAUNCH]
    assert functions[memset:] == ["cuMemsetD32Async", *[LAUNCH] * len(launches), "cuCtxPopCurrent"]
    assert [call.details["cubin"].split()[0] for call in launches] == variants
    assert {call.details["stream"] for call in launches} == {STREAM}
    # The first launch waits for the memory that is cleared, each later one may start before the one before it ends.
    assert [call.details["overlaps"] for call in launches] == [False, *[True] * (len(launches) - 1)]
    assert not {"cuStreamSynchronize", "cuMemcpyDtoHAsync"} & set(functions)


def _update_whose_last_kernel_fails(child: Child, function: str) -> Any:
    plan, variants = _plan_update(child)
    distinct = len(set(variants))
    child.standin.fail(function, 1, distinct - 1)
    message = error_of(lambda: child.launcher.launch(plan, 0, STREAM))
    reached = child.standin.take(LAUNCH, "cuMemsetD32Async")
    child.standin.fail(function, 0)
    child.launcher.launch(plan, 0, STREAM)
    return variants, message, reached, len(child.standin.take(LAUNCH))


@pytest.mark.parametrize("function", ["cuLibraryLoadData", "cuKernelGetFunction"])
def test_an_update_whose_last_kernel_cannot_be_loaded_launches_nothing(
    fresh: Process, function: str
) -> None:
    variants, message, reached, launched = fresh.run(_update_whose_last_kernel_fails, function)
    assert list(dict.fromkeys(variants))[-1] in message
    assert reached == []
    assert launched == len(variants)


def _multiprocessors(child: Child) -> Any:
    return child.launcher.device_multiprocessors(0), error_of(
        lambda: child.launcher.device_multiprocessors(1)
    )


def test_multiprocessors_of_a_device(fresh: Process) -> None:
    count, missing = fresh.run(_multiprocessors)
    assert count == 132
    assert missing == "there is no CUDA device 1: the driver shows 1 devices"


# --- Contexts --------------------------------------------------------------------------------------


def _contexts(child: Child, current: int, device: int) -> Any:
    child.standin.set_current(current)
    _launch_forward(child, device)
    child.standin.take()
    _launch_forward(child, device)
    return child.standin.current(), [call.function for call in child.standin.take()]


@pytest.mark.parametrize("current", [-1, 0, 1])
def test_current_context_is_left_as_it_was(built: Built, current: int) -> None:
    with process(built, "9.0 NVIDIA H200;9.0 NVIDIA H200") as running:
        after, calls = running.run(_contexts, current, 1)
    assert after == (current, 0 if current == -1 else 1)
    pushes = [] if current == 1 else ["cuCtxPushCurrent"]
    pops = [] if current == 1 else ["cuCtxPopCurrent"]
    # Once loaded, this is all that a call asks of the driver.
    assert calls == ["cuCtxGetCurrent", *pushes, LAUNCH, LAUNCH, *pops]


def _context_after_failure(child: Child) -> Any:
    child.standin.set_current(1)
    child.standin.fail(LAUNCH, 719)
    return error_of(lambda: _launch_forward(child)), child.standin.current()


def test_context_is_restored_after_a_failed_launch(built: Built) -> None:
    with process(built, "9.0 NVIDIA H200;9.0 NVIDIA H200") as running:
        message, current = running.run(_context_after_failure)
    assert "cuLaunchKernelEx failed" in message
    assert current == (1, 1)


def _primary_contexts(child: Child) -> Any:
    archs = [child.launcher.device_arch(device) for device in (0, 1)]
    return archs, child.standin.take("cuDevicePrimaryCtxRetain")


def test_asking_for_the_arch_creates_no_context(built: Built) -> None:
    with process(built, "9.0 NVIDIA H200;10.0 NVIDIA B200") as running:
        assert running.run(_primary_contexts) == (["sm90", "sm100"], [])


# --- A driver that fails ---------------------------------------------------------------------------


def _fail_once(child: Child, function: str, skip: int) -> Any:
    plan = _check_bounds(child)
    child.standin.fail(function, 1, skip)
    message = error_of(lambda: child.launcher.launch(plan, 0, STREAM))
    done = [
        call.function for call in child.standin.take(LAUNCH, "cuMemsetD32Async") if call.result == 0
    ]
    child.standin.fail(function, 0)
    child.launcher.launch(plan, 0, STREAM)
    again = [call.function for call in child.standin.take(LAUNCH, "cuMemsetD32Async")]
    return message, done, again


WHOLE_CALL = ["cuMemsetD32Async", LAUNCH, LAUNCH, LAUNCH]


@pytest.mark.parametrize(
    ("function", "skip", "done", "doing"),
    [
        ("cuInit", 0, 0, "initialising the CUDA driver"),
        ("cuDeviceGetCount", 0, 0, "counting CUDA devices"),
        ("cuDeviceGet", 0, 0, "looking for CUDA device 0"),
        ("cuDeviceGetName", 0, 0, "name of CUDA device 0"),
        ("cuDeviceGetAttribute", 0, 0, "compute capability of device 0 'NVIDIA H200'"),
        ("cuDeviceGetAttribute", 1, 0, "compute capability of device 0 'NVIDIA H200'"),
        ("cuDeviceGetAttribute", 2, 0, "number of multiprocessors of device 0 'NVIDIA H200'"),
        ("cuDevicePrimaryCtxRetain", 0, 0, "primary context of device 0 'NVIDIA H200'"),
        ("cuCtxGetCurrent", 0, 0, "current context"),
        ("cuCtxPushCurrent", 0, 0, "primary context current"),
        ("cuThreadExchangeStreamCaptureMode", 0, 0, "preparing to load"),
        ("cuLibraryLoadData", 0, 0, "cubin of check_offsets__i64 for sm90"),
        ("cuLibraryLoadData", 2, 0, "cubin of check_indices__i64 for sm90"),
        ("cuLibraryGetKernel", 0, 0, "entry point check_offsets_kernel of check_offsets__i64"),
        ("cuKernelSetAttribute", 0, 0, "100000 bytes of shared memory for repair_offsets__i64"),
        ("cuKernelGetFunction", 0, 0, "check_offsets__i64 on device 0 'NVIDIA H200'"),
        ("cuKernelGetFunction", 2, 0, "check_indices__i64 on device 0 'NVIDIA H200'"),
        ("cuMemsetD32Async", 0, 0, "clearing 32 bytes"),
        (
            "cuLaunchKernelEx",
            0,
            1,
            "check_offsets__i64 on device 0 'NVIDIA H200' with grid (1, 1, 1)",
        ),
        (
            "cuLaunchKernelEx",
            2,
            3,
            "check_indices__i64 on device 0 'NVIDIA H200' with grid (1, 3, 1)",
        ),
    ],
)
def test_driver_that_fails_once(
    fresh: Process, function: str, skip: int, done: int, doing: str
) -> None:
    message, first, second = fresh.run(_fail_once, function, skip)
    expected = f"{function} failed with CUDA_ERROR_INVALID_VALUE (1: as the test asked) while "
    assert message.startswith(expected)
    assert doing in message
    # Nothing reaches the stream before everything is loaded; afterwards the same call succeeds.
    assert first == WHOLE_CALL[:done]
    assert second == WHOLE_CALL


def _copy(child: Child, function: str) -> Any:
    data = bytearray(b"\1\2\3\4\5\6\7\10")
    address = _address(data)
    child.standin.fail(function, 1)
    message = error_of(lambda: child.launcher.copy_to_host(address, 8, 0, STREAM))
    child.standin.fail(function, 0)
    child.standin.take()
    copied = child.launcher.copy_to_host(address, 8, 0, STREAM)
    return message, copied, [call.function for call in child.standin.take()]


def _address(data: bytearray) -> int:
    import ctypes

    return ctypes.addressof(ctypes.c_char.from_buffer(data))


@pytest.mark.parametrize("function", ["cuMemcpyDtoHAsync", "cuStreamSynchronize"])
def test_copy_to_host_waits_for_the_copy(fresh: Process, function: str) -> None:
    message, copied, calls = fresh.run(_copy, function)
    assert message.startswith(f"{function} failed with CUDA_ERROR_INVALID_VALUE")
    assert copied == b"\1\2\3\4\5\6\7\10"
    assert calls == [
        "cuCtxGetCurrent",
        "cuCtxPushCurrent",
        "cuMemcpyDtoHAsync",
        "cuStreamSynchronize",
        "cuCtxPopCurrent",
    ]


def _driver_error(child: Child) -> str:
    return error_of(lambda: _launch_forward(child))


def test_missing_driver(built: Built, tmp_path: Path) -> None:
    (tmp_path / DRIVER_NAME).write_bytes(b"")
    with process(Built(built.package, tmp_path)) as running:
        message = running.run(_driver_error)
    assert "the CUDA driver libcuda.so.1 cannot be loaded" in message
    assert "CPU tensors need none" in message


def test_driver_that_is_too_old(built: Built, tmp_path: Path) -> None:
    source = tmp_path / "old.cpp"
    source.write_text('extern "C" int cuInit(unsigned) { return 0; }\n')
    compile_driver(source, tmp_path)
    with process(Built(built.package, tmp_path)) as running:
        message = running.run(_driver_error)
    assert "has no function cuGetErrorName: it is too old" in message
    assert "CUDA 12.0 or newer" in message


# --- Devices and variants that are not there ---------------------------------------------------------


def _every_way_to_a_kernel(child: Child) -> Any:
    ways = [
        lambda: child.launcher.device_arch(0),
        lambda: child.launcher.preload(0, "forward", {}),
        lambda: _launch_forward(child),
        lambda: child.launcher.launch(_check_bounds(child), 0, STREAM),
    ]
    return [error_of(way) for way in ways], child.standin.take(LAUNCH, *LOADING)


@pytest.mark.parametrize(
    ("device", "capability"),
    [
        ("8.0 NVIDIA A100", "8.0"),
        ("10.3 NVIDIA B300", "10.3"),
        ("9.1 a younger Hopper", "9.1"),
        ("12.0 NVIDIA RTX PRO", "12.0"),
    ],
)
def test_fbgemm_6151_device_without_kernels(built: Built, device: str, capability: str) -> None:
    with process(built, device) as running:
        messages, calls = running.run(_every_way_to_a_kernel)
    expected = (
        f"no kernel for device 0 '{device.split(' ', 1)[1]}': it has compute capability {capability},"
        " this build of tbe-aot holds kernels for sm90 (compute capability 9.0), sm100 (compute"
        " capability 10.0). Run on such a GPU, install a build that holds this arch, or keep the"
        " tensors on the CPU"
    )
    assert messages == [expected] * 4
    assert calls == []


def _second_device(child: Child) -> Any:
    _launch_forward(child)
    return error_of(lambda: child.launcher.device_arch(1))


def test_fbgemm_6151_beside_a_device_with_kernels(built: Built) -> None:
    with process(built, "9.0 NVIDIA H200;8.0 NVIDIA A100") as running:
        message = running.run(_second_device)
    assert message.startswith("no kernel for device 1 'NVIDIA A100': it has compute capability 8.0")


def _missing_device(child: Child) -> str:
    return error_of(lambda: child.launcher.device_arch(2))


def test_device_number_out_of_range(fresh: Process) -> None:
    message = fresh.run(_missing_device)
    assert message == "there is no CUDA device 2: the driver shows 1 devices"


def _missing_variant(child: Child) -> Any:
    # The first group's variant exists, the second's does not: neither may be launched.
    changes: dict[str, Any] = {
        "layout": [1, 2, 2049, 1, 1, 1, 16, 0, 1, 2048, 0, 1],
        "weight_dtype": "bf16",
        "index_width": 32,
    }
    message = error_of(lambda: _launch_forward(child, **changes))
    preload = error_of(lambda: child.launcher.preload(0, "forward", {"bucket": ["d2048"]}))
    return message, preload, child.standin.take(LAUNCH)


def test_missing_variant_names_profile_and_remedy(fresh: Process) -> None:
    message, preload, launches = fresh.run(_missing_variant)
    assert f"this build of tbe-aot has no cubin of {MISSING} for sm90" in message
    assert f"its profile '{PROFILE}' holds" in message
    assert "Install a build of the profile 'full'" in message
    assert MISSING in preload
    assert launches == []


# --- Loading ---------------------------------------------------------------------------------------


def _many_threads(child: Child, devices: int) -> Any:
    threads = 32
    barrier = threading.Barrier(threads)
    errors: list[str] = []

    def work(number: int) -> None:
        barrier.wait()
        errors.append(error_of(lambda: _launch_forward(child, number % devices)))

    running = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    return errors, child.standin.take(LAUNCH, *LOADING, "cuDevicePrimaryCtxRetain", "cuInit")


@pytest.mark.parametrize("devices", [1, 2])
def test_32_threads_load_each_kernel_once(built: Built, devices: int) -> None:
    with process(built, ";".join(["9.0 NVIDIA H200"] * devices)) as running:
        errors, calls = running.run(_many_threads, devices)
    assert errors == [""] * 32
    count = {
        name: sum(call.function == name for call in calls) for name in {c.function for c in calls}
    }
    assert count == {
        "cuInit": 1,
        "cuDevicePrimaryCtxRetain": devices,
        "cuLibraryLoadData": 2,
        "cuLibraryGetKernel": 2 * devices,
        "cuKernelGetFunction": 2 * devices,
        LAUNCH: 64,
    }


def _two_archs(child: Child) -> Any:
    for device, arch in enumerate(ARCHS):
        assert child.launcher.device_arch(device) == arch
        _launch_forward(child, device, arch=arch)
    wrong = error_of(lambda: _launch_forward(child, 1, arch="sm90"))
    loaded = [
        (entry.device, entry.variant.arch, entry.variant.name) for entry in child.launcher.loaded()
    ]
    return wrong, loaded, child.standin.take(LAUNCH)


def test_two_devices_of_different_archs(built: Built) -> None:
    with process(built, "9.0 NVIDIA H200;10.0 NVIDIA B200") as running:
        wrong, loaded, calls = running.run(_two_archs)
    names = [
        "forward__fp16_d16_i64_weighted_aligned_long_trusting",
        "forward__fp16_d128_i64_weighted_aligned_long_trusting",
    ]
    assert [(call.device, call.details["cubin"]) for call in calls] == [
        (device, f"{name} {arch}") for device, arch in enumerate(ARCHS) for name in names
    ]
    assert wrong == "the plan was made for sm90, device 1 'NVIDIA B200' needs one for sm100"
    assert sorted(loaded) == sorted(
        (device, arch, name) for device, arch in enumerate(ARCHS) for name in names
    )


def _preload_then_capture(child: Child) -> Any:
    axes = {"weight_dtype": ["fp16"], "bucket": ["d16", "d128"], "weighted": ["weighted"]}
    loaded = child.launcher.preload(0, "forward", axes)
    child.standin.take()
    child.standin.capture(STREAM, active=True)
    capturing = child.launcher.is_capturing(0, STREAM), child.launcher.is_capturing(0, STREAM + 1)
    child.standin.take()
    _launch_forward(child)
    return loaded, capturing, [call.function for call in child.standin.take()]


def test_vllm_36587_preload_then_capture_loads_nothing(fresh: Process) -> None:
    loaded, capturing, calls = fresh.run(_preload_then_capture)
    assert len(loaded) == 2 * 2 * (3 + 2)  # buckets, index widths, aligned and generic shapes
    assert "forward__fp16_d128_i64_weighted_aligned_long_trusting" in loaded
    assert capturing == (True, False)
    assert calls == ["cuCtxGetCurrent", "cuCtxPushCurrent", LAUNCH, LAUNCH, "cuCtxPopCurrent"]


def _capture_without_preload(child: Child) -> Any:
    child.standin.capture(STREAM, active=True)
    _launch_forward(child)
    changes = [
        call
        for call in child.standin.take()
        if call.function == "cuThreadExchangeStreamCaptureMode"
    ]
    return len(changes), error_of(lambda: child.launcher.copy_to_host(0x1000, 8, 0, STREAM))


def test_first_call_inside_a_capture_loads_in_relaxed_mode(fresh: Process) -> None:
    changes, copy_error = fresh.run(_capture_without_preload)
    # Into relaxed mode and back, for each of the two kernels.
    assert changes == 4
    assert "cuMemcpyDtoHAsync failed" in copy_error


def _preload(child: Child, kernel: str, axes: dict[str, list[str]], built_only: bool) -> Any:
    return child.launcher.preload(0, kernel, axes, built_only)


def test_preload_can_skip_what_the_build_lacks(shared: Process) -> None:
    axes = {"weight_dtype": ["bf16"], "bucket": ["d2048"], "index_width": ["i32"]}
    loaded = shared.run(_preload, "forward", axes, True)
    assert len(loaded) == 3
    assert MISSING not in loaded


@pytest.mark.parametrize(
    ("kernel", "axes", "message"),
    [
        (
            "backward",
            {},
            "no kernel 'backward' in this build; it holds advance_counters, check_indices, check_offsets",
        ),
        ("forward", {"dtype": ["fp16"]}, "has no axis 'dtype'; it has weight_dtype, bucket"),
        ("forward", {"weight_dtype": ["fp8"]}, "has no value 'fp8'; it has fp32, fp16, bf16"),
    ],
)
def test_preload_refuses_unknown_names(
    shared: Process, kernel: str, axes: dict[str, list[str]], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        shared.run(_preload, kernel, axes, False)


# --- A process without Python ------------------------------------------------------------------------


def test_core_in_a_plain_cpp_process(built: Built, tmp_path: Path) -> None:
    """The core needs neither Python nor torch: a C++ program links the library and launches."""
    package = tmp_path / "package"
    shutil.copytree(built.package, package)
    source = Path(__file__).with_name("plain_process.cpp")
    program = tmp_path / "program"
    root = Path(__file__).resolve().parents[2]
    subprocess.run(
        [
            os.environ.get("CXX", "g++"),
            "-std=c++17",
            f"-I{root / 'csrc_launcher'}",
            source,
            f"-L{package / 'lib'}",
            "-ltbe_aot",
            f"-Wl,-rpath,{package / 'lib'}",
            "-o",
            program,
        ],
        check=True,
    )
    ran = subprocess.run(
        [program],
        env={"LD_LIBRARY_PATH": str(built.driver)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.stdout == "sm90: 1 launch, 1 variant loaded\n", ran.stderr
