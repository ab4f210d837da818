"""Commands that change what a cluster holds and who may use it: topics, groups, settings, users."""
