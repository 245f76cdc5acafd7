"""The layout of a variable batch (VBE): each feature has its own number of bags on each rank.

Bags are feature-major, then by rank, then by sample. The output is 1-D: rank-major, then by feature, then by sample.
"""

import torch


def vbe_layout(
    batch_sizes: list[list[int]], dims: list[int], device: torch.device
) -> tuple[torch.Tensor, torch.Tensor, int, int]:
    """The VBE arguments of ``torch.ops.tbe_aot.forward``.

    Args:
        batch_sizes: per feature and rank the number of bags.
        dims: per feature its dim.
        device: of the tensors returned.

    Returns:
        (vbe_bag_offsets int64 [T + 1], vbe_output_offsets int64 [bags], vbe_max_batch, vbe_output_numel).

    Raises:
        RuntimeError: a feature is missing, features have different numbers of ranks, or a size is negative.
    """
    if len(batch_sizes) != len(dims):
        raise RuntimeError(
            f"batch sizes are given for {len(batch_sizes)} features, expected {len(dims)}"
        )
    ranks = len(batch_sizes[0])
    counts: list[int] = []
    bag_offsets = [0]
    max_batch = 0
    for f in range(len(batch_sizes)):
        if len(batch_sizes[f]) != ranks:
            raise RuntimeError(
                f"feature {f} has batch sizes for {len(batch_sizes[f])} ranks, feature 0 for {ranks}"
            )
        feature_bags = 0
        for count in batch_sizes[f]:
            if count < 0:
                raise RuntimeError(f"feature {f} has a batch size of {count}, expected at least 0")
            counts.append(count)
            feature_bags += count
        bag_offsets.append(bag_offsets[-1] + feature_bags)
        max_batch = max(max_batch, feature_bags)

    # Where the block of (feature, rank) starts in the output, less the elements of the bags before it.
    starts = [0] * len(counts)
    output_numel = 0
    for r in range(ranks):
        for f in range(len(dims)):
            starts[f * ranks + r] = output_numel
            output_numel += counts[f * ranks + r] * dims[f]
    block_dims: list[int] = []
    bag = 0
    for f in range(len(dims)):
        for r in range(ranks):
            starts[f * ranks + r] -= bag * dims[f]
            bag += counts[f * ranks + r]
            block_dims.append(dims[f])

    repeats = torch.tensor(counts, dtype=torch.int64)
    bag_starts = torch.repeat_interleave(
        torch.tensor(starts, dtype=torch.int64), repeats, output_size=bag
    )
    bag_dims = torch.repeat_interleave(
        torch.tensor(block_dims, dtype=torch.int64), repeats, output_size=bag
    )
    output_offsets = bag_starts + torch.arange(bag, dtype=torch.int64) * bag_dims
    # The copies from ordinary memory are staged by the driver: not waiting for them is safe.
    return (
        torch.tensor(bag_offsets, dtype=torch.int64).to(device, non_blocking=True),
        output_offsets.to(device, non_blocking=True),
        max_batch,
        output_numel,
    )
