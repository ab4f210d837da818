"""Consumer groups: coordinators, members, committed offsets."""
