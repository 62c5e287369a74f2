"""Kernel families: config spaces, validity, heuristics, sources, and the compilers."""
