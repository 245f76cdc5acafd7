"""Storing pooled rows in the output dtype that the call asked for."""

import triton
import triton.language as tl


@triton.jit
def _to_odd_fp32(value):
    """fp64 to fp32, an inexact value taking the neighbour whose last bit is 1.

    Rounding such a value once more, to a format with at least two bits less, gives what rounding the fp64 value
    directly would (Boldo and Melquiond, "Emulation of FMA and correctly rounded sums: proved algorithms using
    rounding to odd", 2008). Rounding to the nearest fp32 first would not.
    """
    nearest = value.to(tl.float32)
    rest = value - nearest.to(tl.float64)
    inexact = (rest > 0) | (rest < 0)  # not `!= 0`: it is NaN for infinities, which are exact
    away_from_zero = (rest < 0) == (nearest > 0)
    bits = nearest.to(tl.int32, bitcast=True)
    odd = (bits - away_from_zero.to(tl.int32)) | 1
    return tl.where(inexact, odd, bits).to(tl.float32, bitcast=True)


@triton.jit
def store_rows(output, position, value, mask, output_dtype):
    """Round ``value`` once, to fp32 (0), fp16 (1) or bf16 (2), and store it at ``position`` (elements).

    A run-time choice: three stores under a branch cost nothing beside the gather, three kernels would cost a
    third of the wheel. Streaming stores, because nothing in this launch reads the output again.
    """
    if output_dtype == 0:
        fp32_output = output.to(tl.pointer_type(tl.float32))
        tl.store(fp32_output + position, value.to(tl.float32), mask=mask, cache_modifier=".cs")
    else:
        narrow = _to_odd_fp32(value) if value.dtype == tl.float64 else value
        if output_dtype == 1:
            fp16_output = output.to(tl.pointer_type(tl.float16))
            tl.store(fp16_output + position, narrow.to(tl.float16), mask=mask, cache_modifier=".cs")
        else:
            bf16_output = output.to(tl.pointer_type(tl.bfloat16))
            tl.store(
                bf16_output + position, narrow.to(tl.bfloat16), mask=mask, cache_modifier=".cs"
            )
