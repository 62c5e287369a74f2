"""One tuning job from its request to its winner."""
