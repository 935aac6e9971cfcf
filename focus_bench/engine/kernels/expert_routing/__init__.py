"""Routing of a mixture of experts: the choice for each token, and the sort by expert."""
