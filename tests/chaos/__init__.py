"""Long, seeded fault runs."""
