"""`ottla demo`: a broker, a load and a pipeline on it, on one screen."""
