"""Operands, correctness, timing, races and their statistics."""
