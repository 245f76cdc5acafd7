"""The CUDA driver by way of ctypes: what it says about a cubin, asked without the launcher."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

# CUfunction_attribute, cuda.h
MAX_THREADS, SHARED, LOCAL, REGISTERS, BINARY_VERSION, MAX_DYNAMIC_SHARED = 0, 1, 3, 4, 6, 8
# CUdevice_attribute: of a multiprocessor, and what the system reserves of each block's shared memory.
DEVICE_ATTRIBUTES = {
    "threads": 39,
    "shared_bytes": 81,
    "registers": 82,
    "blocks": 106,
    "reserved_shared_bytes": 111,
}
# What a block may have without asking for more.
PLAIN_SHARED = 48 * 1024


@dataclass(frozen=True)
class DriverFacts:
    """Of one function; sizes in bytes, ``blocks`` that a multiprocessor holds at once."""

    registers: int
    shared_bytes: int
    local_bytes: int
    binary_version: int
    max_threads: int
    blocks: int


class Driver:
    """libcuda; the current context is the one of torch."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL("libcuda.so.1")

    def call(self, name: str, *arguments: object) -> None:
        """Call a function.

        Raises:
            RuntimeError: it does not return success.
        """
        code = getattr(self.library, name)(*arguments)
        if code:
            text = ctypes.c_char_p()
            self.library.cuGetErrorName(code, ctypes.byref(text))
            raise RuntimeError(f"{name}: {(text.value or b'unknown').decode()}")

    def facts(self, cubin: bytes, entry: str, *, threads: int, dynamic_shared: int) -> DriverFacts:
        """Load a cubin, ask, and unload it.

        Args:
            cubin: its bytes.
            entry: the kernel's name.
            threads: of a block.
            dynamic_shared: bytes that a launch asks for.
        """
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        self.call("cuModuleLoadData", ctypes.byref(module), cubin)
        try:
            self.call("cuModuleGetFunction", ctypes.byref(function), module, entry.encode())
            if dynamic_shared > PLAIN_SHARED:
                self.call("cuFuncSetAttribute", function, MAX_DYNAMIC_SHARED, dynamic_shared)
            blocks = ctypes.c_int()
            name = "cuOccupancyMaxActiveBlocksPerMultiprocessor"
            size = ctypes.c_size_t(dynamic_shared)
            self.call(name, ctypes.byref(blocks), function, threads, size)
            return DriverFacts(
                registers=self._attribute(function, REGISTERS),
                shared_bytes=self._attribute(function, SHARED),
                local_bytes=self._attribute(function, LOCAL),
                binary_version=self._attribute(function, BINARY_VERSION),
                max_threads=self._attribute(function, MAX_THREADS),
                blocks=blocks.value,
            )
        finally:
            self.call("cuModuleUnload", module)

    def device_attribute(self, name: str) -> int:
        """One of ``DEVICE_ATTRIBUTES`` of the current device."""
        device, value = ctypes.c_int(), ctypes.c_int()
        self.call("cuCtxGetDevice", ctypes.byref(device))
        attribute = DEVICE_ATTRIBUTES[name]
        self.call("cuDeviceGetAttribute", ctypes.byref(value), attribute, device)
        return value.value

    def _attribute(self, function: ctypes.c_void_p, attribute: int) -> int:
        value = ctypes.c_int()
        self.call("cuFuncGetAttribute", ctypes.byref(value), attribute, function)
        return value.value
