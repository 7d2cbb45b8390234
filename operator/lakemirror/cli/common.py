"""What the commands share: reading the manifest, reporting its errors, and calling the driver."""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import IO, Any, NoReturn

import click

from lakemirror.api import CdcPipeline, ManifestError, load_documents, with_overrides
from lakemirror.api.errors import line
from lakemirror.api.pipeline import read_text
from lakemirror.api.shown import shown
from lakemirror.api.supported import not_supported, wrong_sql
from lakemirror.controller.values import Settings

FAILED, WRONG = 1, 2
SPARK_PACKAGES = ("pyspark", "delta", "py4j", "pyarrow", "prometheus_client")

manifest_option = click.option(
    "-f", "--file", "file", required=True, metavar="FILE", help="The manifest; - reads standard input."
)
set_option = click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="PATH=VALUE",
    help="Set a field of spec, such as target.path=/data/{table} or tables[orders].mode=append. Repeatable.",
)
driver_image_option = click.option(
    "--driver-image",
    envvar="LAKEMIRROR_DRIVER_IMAGE",
    default=Settings.driver_image,
    show_default=True,
    help="The image of drivers where spec.spark.image is not given.",
)
secret_option = click.option(
    "--secret",
    "secrets",
    multiple=True,
    metavar="NAME=DIR",
    help="A directory with one file per key, for a Secret that the manifest names. Repeatable.",
)
timeout_option = click.option(
    "--timeout",
    metavar="SECONDS",
    type=click.FloatRange(min=0),
    default=300.0,
    show_default=True,
    help="How long to wait for a running driver, for each request. Some commands send one request per table.",
)
debug_option = click.option("--debug", is_flag=True, help="Show where in the code an error occurred.")


def say(*lines: str, err: bool = False) -> None:
    """Print lines, with control characters as escapes: they may have names and reasons of other people."""
    for text in lines:
        click.echo(shown(text), err=err)


def read_documents(file: str) -> list[Any]:
    """Return the documents of a YAML file or of standard input. Raises ManifestError if there are none."""
    source: str | IO[str] = sys.stdin if file == "-" else file
    documents = load_documents(read_text(source))
    if not documents:
        raise ManifestError([("", "holds no document")])
    return documents


def read_pipeline(file: str, settings: Sequence[str] = ()) -> CdcPipeline:
    """Return the only pipeline of a manifest, with ``--set`` applied. Exits with code 2 if it is invalid."""
    try:
        pipelines = [d for d in read_documents(file) if not is_foreign(d)]
        if len(pipelines) != 1:
            raise ManifestError([("", f"one CdcPipeline is expected, found {len(pipelines)}")])
        document = pipelines[0]
        if isinstance(document, dict):
            document = with_overrides(document, settings)
        return supported(document)
    except ManifestError as e:
        print_errors(file, e)
        sys.exit(WRONG)


def supported(document: Any) -> CdcPipeline:
    """Return the pipeline of a document.

    Raises ManifestError if it is invalid, or asks for something that is not supported.
    """
    pipeline = CdcPipeline.from_dict(document)
    refused = [*not_supported(pipeline.spec), *wrong_sql(pipeline.spec)]
    if refused:
        raise ManifestError(refused)
    return pipeline


def is_foreign(document: Any) -> bool:
    """Return whether a document is complete and of another kind, such as a Namespace in the same file."""
    if not isinstance(document, dict):
        return False
    version, kind = document.get("apiVersion"), document.get("kind")
    if not isinstance(version, str) or not isinstance(kind, str):
        return False
    return "lakemirror" not in version and not kind.lower().startswith("cdc")


def print_errors(file: str, error: ManifestError) -> None:
    """Print one line for each error to standard error: ``FILE: path: message``."""
    for path, message in error.errors:
        say(f"{file}: {line(path, message)}", err=True)


def secret_directories(pipeline: CdcPipeline, given: Sequence[str]) -> dict[str, str]:
    """Return the directories of ``--secret NAME=DIR`` by name.

    Raises UsageError if one is missing or unused.
    """
    directories = given_directories(given)
    used = pipeline.spec.secrets()
    for path, name in used.items():
        if name not in directories:
            raise click.UsageError(
                f"{path} names the secret {name}: say where it is with --secret {name}=DIR"
            )
    for name in directories:
        if name not in used.values():
            raise click.UsageError(
                f"--secret {name}: the driver of this manifest does not read such a Secret"
            )
    return directories


def driver_module(name: str) -> ModuleType:
    """Return a module of the driver's runtime. Exits with code 1 and a hint if Spark is not installed."""
    try:
        return importlib.import_module(f"lakemirror.driver.runtime.{name}")
    except ModuleNotFoundError as e:
        package = (e.name or "").partition(".")[0]
        if package not in SPARK_PACKAGES:
            raise
        fail(not_installed(package, "spark"))


def not_installed(package: str, extra: str) -> str:
    """Say which extra of Lakemirror a missing package belongs to, and how to install it."""
    return (
        f"{package} is not installed. It belongs to the extra {extra} of Lakemirror: "
        f"in a clone, run pip install '.[{extra}]'"
    )


def call(function: Callable[..., Any], *args: Any, debug: bool, **options: Any) -> Any:
    """Return what the driver's function returns. Exits with code 1 and one line if it fails."""
    try:
        return function(*args, **options)
    except KeyboardInterrupt:
        fail("interrupted")
    except Exception as e:
        if debug:
            say(*traceback.format_exc().splitlines(), err=True)
        fail(describe(e) + ("" if debug or is_ours(e) else " (--debug shows where)"))


def is_ours(error: Exception) -> bool:
    """Return whether Lakemirror raised the error on purpose, with a message for people."""
    return any(c.__name__ == "LakemirrorError" for c in type(error).__mro__)


def describe(error: Exception) -> str:
    """Describe an error in one line."""
    errors = sys.modules.get("lakemirror.driver.errors")
    if errors is not None:  # the driver is loaded: for an error in Java, it names the cause
        return str(errors.cause_of(error))
    first = next((text for text in str(error).splitlines() if text.strip()), "")
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


def fail(message: str) -> NoReturn:
    """Print the reason in one line to standard error, and exit with code 1."""
    say(f"lakemirror: {message}", err=True)
    sys.exit(FAILED)


def given_directories(given: Sequence[str]) -> dict[str, str]:
    """Return the directories of ``--secret NAME=DIR`` by name. Raises UsageError if one is not valid."""
    directories: dict[str, str] = {}
    for secret in given:
        name, equals, directory = secret.partition("=")
        if not (name and equals and directory):
            raise click.UsageError(f"--secret {secret}: write NAME=DIR")
        if not Path(directory).is_dir():
            raise click.UsageError(f"--secret {name}: {directory} is not a directory")
        directories[name] = directory
    return directories
