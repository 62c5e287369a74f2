"""The clients: what travels, how it is sent, what comes back."""
