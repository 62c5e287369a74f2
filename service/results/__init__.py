"""Results as the service hands them out and takes them in."""
