"""Family ``host``: a blocked C GEMM for the CPU."""
