"""Queries of what people look at: of many rows the few columns that a plot or a table needs."""
