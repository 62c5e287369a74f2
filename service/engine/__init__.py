"""The local engine: a queue for each device, admission, background tuning."""
