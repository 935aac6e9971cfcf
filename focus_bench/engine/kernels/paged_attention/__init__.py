"""Attention of ragged query rows over a paged cache."""
