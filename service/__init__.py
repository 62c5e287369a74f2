"""The service: HTTP API, jobs, engine, settings, command line."""
