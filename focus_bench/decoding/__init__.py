"""The decoding rules of block diffusion and of FOCUS, once, as pure array functions (numpy)."""
