"""The server: it opens and wires the service, and admits connections and requests."""
