"""What every kernel family is made of: the base class, its knobs, and tile hints of other libraries."""
