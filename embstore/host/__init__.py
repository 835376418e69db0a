"""The host beneath every device: its memory, worker threads, and facts about it."""
