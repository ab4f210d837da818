"""What the pipeline's tests share."""
