"""Supervised processes that compile, measure and answer."""
