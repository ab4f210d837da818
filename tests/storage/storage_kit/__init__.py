"""What tests of logs share: makers of logs and batches, disks that fail, a model of what must hold."""
