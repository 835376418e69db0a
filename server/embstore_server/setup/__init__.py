"""What a server is told before it begins: its settings, and how they are read."""
