"""Config sets in a process: fetching, refreshing and looking up."""
