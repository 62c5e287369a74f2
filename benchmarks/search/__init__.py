"""The search on recorded and live spaces."""
