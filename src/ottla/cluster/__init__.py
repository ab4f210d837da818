"""What the cluster knows: the metadata model, its stores and the controller."""
