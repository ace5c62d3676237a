"""What a reduction makes of the ranks' values."""

from __future__ import annotations

from enum import Enum

import torch


class ReduceOp(Enum):
    """How values of several ranks become one; `elche.Average` and so on are its members.

    Sums of float16 and bfloat16 are made in float32. An average of integers is rounded down. A bool's sum is
    true where any rank's is.
    """

    AVERAGE = "Average"
    SUM = "Sum"
    ADASUM = "Adasum"
    MIN = "Min"
    MAX = "Max"
    PRODUCT = "Product"

    def __str__(self) -> str:
        """Return Horovod's name."""
        return self.value


Average, Sum, Adasum = ReduceOp.AVERAGE, ReduceOp.SUM, ReduceOp.ADASUM
Min, Max, Product = ReduceOp.MIN, ReduceOp.MAX, ReduceOp.PRODUCT

DTYPES = {
    torch.uint8: "uint8",
    torch.int8: "int8",
    torch.int16: "int16",
    torch.int32: "int32",
    torch.int64: "int64",
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
    torch.float32: "float32",
    torch.float64: "float64",
    torch.bool: "bool",
}
DTYPE_OF = {name: dtype for dtype, name in DTYPES.items()}
