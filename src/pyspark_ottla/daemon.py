"""The process that Spark's Python workers are forked from, with all that they need loaded already.

    spark.python.daemon.module = pyspark_ottla.daemon        # ottla.pipeline.session() sets it

Spark starts workers whenever it needs more of them, and again for those that a LIMIT cut off. Without
this, each loads Arrow and the compiled kernels for itself, which takes a second and more.
"""

from __future__ import annotations

from pyspark.daemon import manager

import pyspark_ottla.source  # noqa: F401 - loaded for the workers

if __name__ == "__main__":
    manager()
