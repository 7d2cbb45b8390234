"""Installs the Java classes that list logs and make commits to object stores atomic, and measure text files.

The former serve Delta and Spark's streaming, which has nothing for stores without an exclusive rename.

They are compiled when the driver starts, with the compiler that Spark uses for generated code (Janino), and
packed into a jar. The driver's class loader gets the jar at once, and executors get it with their first task.
VACUUM lists files on executors through the log store.
"""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any, Final

from py4j.protocol import Py4JJavaError
from pyspark import SparkFiles
from pyspark.sql import SparkSession

from lakemirror.api.object_stores import CONDITIONAL_LOG_STORE
from lakemirror.driver.java import java_class

SOURCES: Final = Path(__file__).with_name("java_sources")
_JAR: Final = "lakemirror-log-store.jar"
_COMPILER: Final = "org.codehaus.commons.compiler.util.resource"


def install(spark: SparkSession) -> None:
    """Make the classes available to the session's JVMs, unless they are known already."""
    if knows(spark, CONDITIONAL_LOG_STORE):
        return
    jar = Path(SparkFiles.getRootDirectory()).absolute() / _JAR  # deleted with the context
    with zipfile.ZipFile(jar, "w") as archive:
        for name, code in _compiled(spark).items():
            archive.writestr(name, code)
    _loader(spark).addURL(java_class(spark, "java.io.File")(str(jar)).toURI().toURL())
    if not str(spark.sparkContext.master).startswith("local["):
        spark.sparkContext._jsc.addJar(str(jar))


def knows(spark: SparkSession, name: str) -> bool:
    """Return whether the driver's JVM can find a class."""
    try:
        _loader(spark).loadClass(name)
    except Py4JJavaError:
        return False
    return True


def _loader(spark: SparkSession) -> Any:
    """Return the class loader that Spark and each of its threads use: spark-submit's, which accepts jars."""
    return java_class(spark, "java.lang.Thread").currentThread().getContextClassLoader()


def _compiled(spark: SparkSession) -> dict[str, bytes]:
    """Return the bytecode of each class, by the name of its file in a jar."""
    gateway: Any = spark.sparkContext._gateway
    files = sorted(SOURCES.glob("*.java"))
    text = java_class(spark, f"{_COMPILER}.StringResource")
    resource = java_class(spark, f"{_COMPILER}.Resource")
    sources = gateway.new_array(resource, len(files))
    for index, file in enumerate(files):
        sources[index] = text(file.name, file.read_text("utf-8"))
    compiled = java_class(spark, "java.util.HashMap")()
    compiler = java_class(spark, "org.codehaus.janino.Compiler")()
    compiler.setIClassLoader(java_class(spark, "org.codehaus.janino.ClassLoaderIClassLoader")(_loader(spark)))
    compiler.setClassFileCreator(java_class(spark, f"{_COMPILER}.MapResourceCreator")(compiled))
    compiler.compile(sources)
    return {name: bytes(compiled[name]) for name in compiled}
