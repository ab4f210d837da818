"""What the client's soak tests run in processes of their own."""
