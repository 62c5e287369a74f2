"""Who may change what, and who did: API keys, trusted keys and the audit log."""
