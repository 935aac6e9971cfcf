"""Feed-forward of a mixture of experts: grouped products and their sum."""
