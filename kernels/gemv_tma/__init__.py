"""Family ``gemv_tma``: M or N of at most 16, the large operand read by TMA, sm_90."""
