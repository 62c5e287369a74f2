"""The search: which config to try next."""
