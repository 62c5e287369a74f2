"""Searches on recorded spaces: thousands of tuning jobs without a device."""
