"""Family ``wmma``: 16 x 16 x 16 products of opaque fragments, sm_80 and later."""
