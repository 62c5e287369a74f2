"""What waits for a device, and who works on it: claims of jobs, their holders, imported winners."""
