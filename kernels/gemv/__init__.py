"""Family ``gemv``: M or N of at most 16, operands read by direct loads."""
