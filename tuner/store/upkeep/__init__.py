"""Keeping a database for years: backups, checks."""
