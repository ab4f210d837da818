"""Topics and partitions: what there is, what is made and deleted, where replicas lie."""
