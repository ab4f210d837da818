"""What the consumer's tests share: records written without a producer of our own."""
