"""How it is offered: HTTP API, jobs, engine, settings, command line."""
