"""What the tests of records share."""
