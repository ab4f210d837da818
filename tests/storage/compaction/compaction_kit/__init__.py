"""What the tests of compaction share."""
