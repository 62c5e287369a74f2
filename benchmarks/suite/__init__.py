"""The suite: tuned kernels against cuBLASLt, cuBLAS and PyTorch."""
