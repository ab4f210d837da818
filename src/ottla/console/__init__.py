"""The console: an HTTP API to a cluster, for people and scripts without a Kafka client.

It stands on the client alone and keeps nothing: whatever it says it has asked a broker just now.
`ottla console` starts it. Needs `pip install 'ottla[console]'`.
"""
