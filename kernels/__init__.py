"""How a kernel is described and built: families, config spaces, validity, compile."""
