"""What the CUDA families share: targets, tiling, layouts and rasters, and the headers that mirror them."""
