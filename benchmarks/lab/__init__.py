"""Experiments and their records."""
