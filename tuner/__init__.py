"""How the best config is found: search, check, measure, race, and the store of results."""
