"""What a server tells of itself: log, metrics of calls, slow calls, traces."""
