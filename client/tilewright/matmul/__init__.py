"""``matmul`` on the caller's own device with tuned kernels."""
