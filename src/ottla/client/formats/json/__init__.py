"""Values as JSON: columns to text and back."""
