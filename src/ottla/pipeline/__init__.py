"""Data pipelines on Spark: the session that everything runs in."""

from ottla.pipeline.spark.session import session

__all__ = ["session"]
