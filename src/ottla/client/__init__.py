"""The Arrow-native client."""
