"""What workers may take of their host: memory, disk."""
