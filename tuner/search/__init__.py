"""Which config to try next."""
