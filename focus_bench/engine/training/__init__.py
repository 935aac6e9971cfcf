"""Block-diffusion training of SDAR-type models: from token documents to a checkpoint."""
