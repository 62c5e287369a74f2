"""A simulated fleet: many devices that replay recorded spaces against a real database."""
