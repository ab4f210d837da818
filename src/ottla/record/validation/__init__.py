"""The check of what is inside of a produced batch, as Apache Kafka's broker does it: `check_records`."""
