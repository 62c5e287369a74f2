"""The revisions 0009 to 0016."""
