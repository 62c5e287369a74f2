"""The base class of kernel families, their knobs, and tile hints of other libraries."""
