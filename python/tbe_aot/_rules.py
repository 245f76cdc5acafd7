"""The words that the generated checks of the fakes are made of.

Messages are those of csrc_launcher/ops/tensor_info.cpp: a call is refused in the same words whether it runs or is
traced. Sizes may be symbolic; ``require`` then becomes a guard or a run-time assertion, as torch decides.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeGuard

import torch

Condition = bool | torch.SymBool


def known(condition: Condition) -> bool:
    """Whether a condition is true for every size that a symbol stands for."""
    if isinstance(condition, bool):
        return condition
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    return bool(statically_known_true(condition))


def given(tensor: torch.Tensor | None) -> TypeGuard[torch.Tensor]:
    """Present and not empty: an empty optional tensor means the same as None."""
    return tensor is not None and not known(tensor.numel() == 0)


def numel(tensor: torch.Tensor | None) -> int:
    """The number of elements, 0 for None."""
    return 0 if tensor is None else tensor.numel()


def dtype_name(dtype: torch.dtype) -> str:
    """torch.float32 as "float32"."""
    return str(dtype).removeprefix("torch.")


def every(*conditions: Condition) -> Condition:
    """``and`` without asking a symbolic condition for its truth."""
    if all(isinstance(condition, bool) for condition in conditions):
        return all(conditions)
    from torch.fx.experimental.symbolic_shapes import sym_and

    result: Condition = sym_and(*conditions)
    return result


def either(*conditions: Condition) -> Condition:
    """``or`` without asking a symbolic condition for its truth."""
    if all(isinstance(condition, bool) for condition in conditions):
        return any(conditions)
    from torch.fx.experimental.symbolic_shapes import sym_or

    result: Condition = sym_or(*conditions)
    return result


def negate(condition: Condition) -> Condition:
    """``not`` without asking a symbolic condition for its truth."""
    result: Condition = torch.sym_not(condition)
    return result


def require(operator: str, condition: Condition, message: Callable[[], str]) -> None:
    """Raise RuntimeError unless the condition holds."""
    torch._check(condition, lambda: f"{operator}: {message()}")  # noqa: SLF001 - torch documents it


def require_known(operator: str, condition: Condition, message: Callable[[], str]) -> None:
    """Raise RuntimeError if the condition is known to be false; do not specialise a symbolic size for it."""
    if known(negate(condition)):
        raise RuntimeError(f"{operator}: {message()}")


def alternatives(words: Sequence[str]) -> str:
    """Words as ``a``, ``a or b``, ``a, b or c``."""
    commas = ", ".join(words[:-1])
    return f"{commas} or {words[-1]}" if commas else words[-1]


def expect_tensor(
    operator: str,
    name: str,
    tensor: torch.Tensor,
    dtypes: Sequence[str],
    *,
    rank: int,
    contiguous: bool,
    gradient: bool,
) -> None:
    """Raise RuntimeError unless the tensor is of one of the dtypes, of the rank (0: any), and so on."""
    if dtype_name(tensor.dtype) not in dtypes:
        raise RuntimeError(
            f"{operator}: {name} is {dtype_name(tensor.dtype)}, expected {alternatives(dtypes)}"
        )
    if rank not in {0, tensor.dim()}:
        raise RuntimeError(f"{operator}: {name} has {tensor.dim()} dimensions, expected {rank}")
    if contiguous and not tensor.is_contiguous():
        raise RuntimeError(f"{operator}: {name} is not contiguous, expected contiguous memory")
    if not gradient and torch.is_grad_enabled() and tensor.requires_grad:
        raise RuntimeError(
            f"{operator}: {name} requires grad, but this operator has no gradient: call it under torch.no_grad()"
            f" or pass {name}.detach()"
        )


def expect_same_device(
    operator: str, name: str, tensor: torch.Tensor, reference_name: str, reference: torch.Tensor
) -> None:
    """Raise RuntimeError unless both tensors are on one device."""
    if tensor.device != reference.device:
        raise RuntimeError(
            f"{operator}: {name} is on {tensor.device}, expected {reference.device}, the device of {reference_name}"
        )


def expect_one_of(operator: str, name: str, value: str, allowed: Sequence[str]) -> None:
    """Raise RuntimeError unless the string is one of those allowed."""
    if value not in allowed:
        words = alternatives([f"'{word}'" for word in allowed])
        raise RuntimeError(f"{operator}: {name} is '{value}', expected {words}")
