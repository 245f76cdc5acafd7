"""``sort_pass`` on the host, and what it must do."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import torch

from tests.simt.host_kernel import HostKernel, pointer, tuned_kernel

KEY_DTYPES = {32: torch.int32, 64: torch.int64}


@dataclass(frozen=True)
class SortPass:
    """A variant of the kernel and its constants."""

    kernel: HostKernel
    tile: int
    digit_bits: int

    @property
    def digits(self) -> int:
        """How many values a digit has."""
        return 1 << self.digit_bits

    def tiles(self, lookups: int) -> int:
        """Blocks of a launch."""
        return -(-lookups // self.tile)


def sort_pass(key_width: int, size: str) -> SortPass:
    """The variant of a key width and a size, with the constants of its spec."""
    kernel, constants = tuned_kernel("sort_pass", key_width, size=size)
    return SortPass(kernel, constants["TILE"], constants["DIGIT_BITS"])


def run_pass(
    variant: SortPass,
    keys: torch.Tensor,
    values: torch.Tensor | None,
    shift: int,
    *,
    side_by_side: int = 3,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """One pass over ``keys`` [N]: keys, values (counted up if None) and the histogram of the next digit."""
    lookups = keys.numel()
    digits = variant.digits
    histogram = torch.bincount((keys.long() >> shift) & (digits - 1), minlength=digits).int()
    next_histogram = torch.zeros(digits, dtype=torch.int32)
    status = torch.zeros(variant.tiles(lookups) * digits, dtype=torch.int32)
    keys_out = torch.full_like(keys, -7)
    values_out = torch.full((lookups,), -7, dtype=torch.int32)
    unread = torch.full((lookups,), -9, dtype=torch.int32)
    variant.kernel(
        variant.tiles(lookups),
        [
            pointer(keys),
            pointer(unread if values is None else values),
            pointer(keys_out),
            pointer(values_out),
            pointer(histogram),
            pointer(next_histogram),
            pointer(status),
            ctypes.c_int(lookups),
            ctypes.c_int(shift),
            ctypes.c_int(values is None),
            ctypes.c_int(7),
        ],
        side_by_side,
    )
    return keys_out, values_out, next_histogram
