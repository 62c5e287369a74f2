"""The verbs of the command line: thin wrappers over the client, the store and the service."""
