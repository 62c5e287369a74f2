"""Targets, tiling and layouts of the CUDA families, and the headers that mirror them."""
