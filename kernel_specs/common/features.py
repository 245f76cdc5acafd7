"""Reading the feature table, the one description of tables and features that kernels and host share.

``features`` is int64 [features, 8]; its columns are feature, weight_offset, row_pitch, dim, rows, output_column,
table and first_global_row (offsets, pitch, dim and column in elements).
"""

import triton
import triton.language as tl


@triton.jit
def load_feature(features, slot, UNIT: tl.constexpr):
    """(feature, weight_offset, row_pitch, dim, output_column) of one row of the feature table.

    UNIT elements divide weight_offset and row_pitch in an aligned launch. Saying so here, on loaded values, is what
    widens the row loads: the same hint on a kernel argument is dropped by the compiler.
    """
    entry = features + slot * 8
    feature = tl.load(entry)
    weight_offset = tl.multiple_of(tl.load(entry + 1), UNIT)
    # A pitch has 32 bits: multiplying a 64-bit index by it saves an instruction per row.
    row_pitch = tl.multiple_of(tl.load(entry + 2).to(tl.uint32), UNIT).to(tl.int64)
    dim = tl.load(entry + 3)
    output_column = tl.load(entry + 5)
    return feature, weight_offset, row_pitch, dim, output_column


@triton.jit
def feature_bags(feature, batch_size, vbe_bag_offsets, vbe):
    """(first bag, number of bags) of a feature; bags are numbered feature-major."""
    first_bag = feature * batch_size
    bag_count = tl.zeros([], tl.int64) + batch_size
    if vbe != 0:
        first_bag = tl.load(vbe_bag_offsets + feature)
        bag_count = tl.load(vbe_bag_offsets + feature + 1) - first_bag
    return first_bag, bag_count
