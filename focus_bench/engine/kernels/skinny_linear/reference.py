"""A linear layer with float32 sums in plain torch."""

from torch import Tensor


def skinny_linear(x: Tensor, weight: Tensor, *, residual: Tensor | None = None) -> Tensor:
    """Return x [M, K] times `weight` [N, K] transposed plus `residual` [M, N], rounded once."""
    product = x.float() @ weight.float().T
    if residual is not None:
        product = product + residual.float()
    return product.to(x.dtype)
