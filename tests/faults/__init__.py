"""Faults put exactly where they hurt: kills, stops, full disks, races, raw SQL, broken protocols, old schemas."""
