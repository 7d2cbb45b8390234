"""The rules are plain Python: they can be imported, and used, where there is no Spark and no Arrow."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import lakemirror.driver.rules as rules

pytestmark = pytest.mark.guarantee(
    "The rules of a mirror need no Spark, and do not depend on the order in which changes, blocks or batches "
    "arrive"
)

PLAIN = """
import importlib, pkgutil, sys
for name in ("pyspark", "py4j", "delta", "pyarrow", "pandas", "numpy"):
    sys.modules[name] = None
import lakemirror.driver.rules as rules
for each in pkgutil.walk_packages(rules.__path__, rules.__name__ + "."):
    importlib.import_module(each.name)
"""


def test_no_rule_needs_spark_or_arrow() -> None:
    subprocess.run(
        [sys.executable, "-c", PLAIN], check=True, env={"PYTHONPATH": str(Path("operator").resolve())}
    )


def test_the_page_of_the_rules_names_each_of_them() -> None:
    folder = Path(str(rules.__file__)).parent
    named = {each.stem for each in folder.glob("*.py")} | {each.parent.name for each in folder.glob("*/*.py")}
    named -= {"__init__", "__pycache__", "rules"}
    assert rules.__doc__ is not None
    listed = set(re.findall(r"[a-z_]+", rules.__doc__.partition("=\n")[2]))
    assert named - listed == set()
