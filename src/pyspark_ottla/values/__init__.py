"""Values as structs: their options, their schemas, and the columns that hold them."""
