"""Classes of Java, found once.

Py4J asks the JVM for a class each time that its name is written down, and for its method as well. A name
without package, like the ``functions`` that PySpark asks for with nearly every expression, and each package
on the way of ``jvm.org.apache.spark``, is looked for in all jars of the class path before it is
understood: a call that takes a tenth of a millisecond takes one or two.
"""

from __future__ import annotations

from typing import Any, Final

from py4j.java_gateway import JavaClass, JavaMember
from pyspark.sql import SparkSession

_OF_PYSPARK: Final = (
    "org.apache.spark.sql.functions",
    "org.apache.spark.api.python.PythonUtils",
    "org.apache.spark.sql.api.python.PythonSQLUtils",
)
"""Classes that PySpark names without their package."""


class _Found(JavaClass):  # type: ignore[misc]  # Py4J has no types
    """A class that asks for each of its methods once."""

    def __getattr__(self, name: str) -> Any:
        found = super().__getattr__(name)
        if isinstance(found, JavaMember):
            self.__dict__[name] = found
        return found


def java_class(spark: SparkSession, name: str) -> Any:
    """The class of this full name, such as ``java.util.ArrayList``, to call it or its static methods.

    Raises Py4JError where there is none.
    """
    jvm: Any = spark._jvm
    known = jvm.__dict__.get(name)
    if known is None:
        known = jvm.__dict__[name] = _found(jvm, name)
    return known


def find_once(spark: SparkSession) -> None:
    """Have PySpark find the classes once of which it makes expressions."""
    jvm: Any = spark._jvm
    for name in _OF_PYSPARK:
        jvm.__dict__[name.rpartition(".")[2]] = java_class(spark, name)


def _found(jvm: Any, name: str) -> Any:
    found = getattr(jvm, name)
    return _Found(found._fqn, found._gateway_client) if isinstance(found, JavaClass) else found
