"""Family ``simt``: ordinary FMA units, any type, layout, alignment and size."""
