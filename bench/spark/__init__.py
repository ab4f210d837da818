"""What Spark reads, streams and writes, and how long a query takes."""
