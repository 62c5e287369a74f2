"""Config sets in a process: fetched, kept fresh, asked."""
