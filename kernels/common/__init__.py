"""What kernel families share: the base class, rules, layouts and rasters."""
