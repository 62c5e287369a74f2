"""Family mma_sync against CUTLASS's kernels of the same instruction, and against that instruction alone."""
