"""Root-mean-square normalisation, with the residual addition before it in the same pass."""
