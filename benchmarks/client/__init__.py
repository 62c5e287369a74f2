"""What the client costs and gains."""
