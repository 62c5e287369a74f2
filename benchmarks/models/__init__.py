"""Benchmarks of what a user tunes: the weights of a model on a ladder of M, and shapes that nobody tuned."""
