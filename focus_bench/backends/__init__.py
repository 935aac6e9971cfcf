"""Engines from outside behind this project's records: an OpenAI-compatible endpoint, LMDeploy."""
