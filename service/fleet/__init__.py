"""The fleet: devices of a Ray cluster. Ray places and restarts, the database decides."""
