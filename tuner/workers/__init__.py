"""Supervised processes that compile, measure and run GEMMs."""
