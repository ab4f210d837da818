"""What the commands about clusters share: asking the controller, moving partitions, importing logs."""
