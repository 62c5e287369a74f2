"""The server: what of the service it opens, wires and lets in."""
