"""Column types, and the tables of callers; :mod:`tuner.store.models` has all tables."""
