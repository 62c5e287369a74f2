"""Results that the service exports, imports and serves."""
