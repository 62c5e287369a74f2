"""The ladder of reference kernels against cuBLAS."""
