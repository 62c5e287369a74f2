"""GEMMs on request."""
