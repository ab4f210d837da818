"""Values as Avro: schemas, and columns to bytes and back."""
