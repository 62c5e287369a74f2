"""The clients: requests, transports and answers."""
