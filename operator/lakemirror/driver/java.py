"""Java classes, looked up once.

Py4J asks the JVM for a class, and for its method, every time the name is written. A name without a package,
such as ``functions``, which PySpark requests for nearly every expression, is looked up in all jars of the
class path before it is resolved. So is each package along the path ``jvm.org.apache.spark``. As a result, a
call that takes a tenth of a millisecond takes one or two.
"""

from __future__ import annotations

from typing import Any, Final

from py4j.java_gateway import JavaClass, JavaMember
from pyspark import SparkContext
from pyspark.sql import SparkSession

_OF_PYSPARK: Final = (
    "org.apache.spark.sql.functions",
    "org.apache.spark.api.python.PythonUtils",
    "org.apache.spark.sql.api.python.PythonSQLUtils",
)
"""Classes that PySpark names without their package."""


class _Found(JavaClass):  # type: ignore[misc]  # Py4J has no types
    """A class that looks up each of its methods only once."""

    def __getattr__(self, name: str) -> Any:
        found = super().__getattr__(name)
        if isinstance(found, JavaMember):
            self.__dict__[name] = found
        return found


def java_class(spark: SparkSession | SparkContext, name: str) -> Any:
    """Return the class with this full name, such as ``java.util.ArrayList``.

    The class can be called, and so can its static methods. Raises Py4JError if there is no such class.
    """
    jvm: Any = spark._jvm
    known = jvm.__dict__.get(name)
    if known is None:
        known = jvm.__dict__[name] = _found(jvm, name)
    return known


def delta_log(spark: SparkSession, path: str) -> Any:
    """Return Delta's own object for the log of a table (org.apache.spark.sql.delta.DeltaLog).

    What Delta computes from a checkpoint of the log, and the checkpoints that it writes, need a session that
    is active in the thread. New threads have none.
    """
    sessions = java_class(spark, "org.apache.spark.sql.SparkSession")
    if sessions.getActiveSession().isEmpty():
        sessions.setActiveSession(spark._jsparkSession)
    return java_class(spark, "org.apache.spark.sql.delta.DeltaLog").forTable(spark._jsparkSession, path)


def find_once(spark: SparkSession) -> None:
    """Make PySpark look up the classes that it builds expressions with only once."""
    jvm: Any = spark._jvm
    for name in _OF_PYSPARK:
        jvm.__dict__[name.rpartition(".")[2]] = java_class(spark, name)


def _found(jvm: Any, name: str) -> Any:
    found = getattr(jvm, name)
    return _Found(found._fqn, found._gateway_client) if isinstance(found, JavaClass) else found
