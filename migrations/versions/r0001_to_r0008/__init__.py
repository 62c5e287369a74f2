"""The revisions up to 0008."""
