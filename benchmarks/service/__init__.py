"""What the service costs and carries."""
