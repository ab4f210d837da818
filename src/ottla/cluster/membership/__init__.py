"""A broker's place in its cluster: session, registration and candidacy, and the metadata it follows."""
