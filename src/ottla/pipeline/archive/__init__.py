"""Topics to tables: Parquet files, Delta, Iceberg."""
