"""Log collection: files are followed, and their lines become records, each exactly once.

    from ottla.pipeline.collect import Collector

    Collector("localhost:9092", "weblogs", ["/var/log/nginx/access.log"]).run(stop)

`patterns` finds files, `files` and `following` know them across rotations, `lines` cuts what they hold,
`positions` keeps how far each was sent, and `collector` sends lines and positions in one transaction.
"""

from ottla.pipeline.collect.collector import Collector, Incomplete, KeyChoice, NameTaken
from ottla.pipeline.collect.patterns import Unreadable

__all__ = ["Collector", "Incomplete", "KeyChoice", "NameTaken", "Unreadable"]
