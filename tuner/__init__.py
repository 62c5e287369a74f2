"""Tuning: search, correctness, measurement, races, and the store of results."""
