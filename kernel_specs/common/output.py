"""Storing pooled rows in the output dtype that the call asked for."""

import triton
import triton.language as tl


@triton.jit
def store_rows(output, position, value, mask, output_dtype):
    """Round ``value`` once, to fp32 (0), fp16 (1) or bf16 (2), and store it at ``position`` (elements).

    A run-time choice: three stores under a branch cost nothing beside the gather, three kernels would cost a
    third of the wheel. Streaming stores, because nothing in this launch reads the output again.
    """
    if output_dtype == 0:
        tl.store(
            output.to(tl.pointer_type(tl.float32)) + position,
            value.to(tl.float32),
            mask=mask,
            cache_modifier=".cs",
        )
    elif output_dtype == 1:
        tl.store(
            output.to(tl.pointer_type(tl.float16)) + position,
            value.to(tl.float16),
            mask=mask,
            cache_modifier=".cs",
        )
    else:
        tl.store(
            output.to(tl.pointer_type(tl.bfloat16)) + position,
            value.to(tl.bfloat16),
            mask=mask,
            cache_modifier=".cs",
        )
