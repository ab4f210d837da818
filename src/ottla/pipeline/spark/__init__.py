"""Spark itself: its Java, its session, its errors, the progress of its queries."""
