"""``lakemirror validate``: reports all errors in manifests, without a cluster and without Spark."""

from __future__ import annotations

import sys
from typing import Any

import click

from lakemirror.api import ManifestError
from lakemirror.api.errors import line
from lakemirror.api.unencrypted import unencrypted_logins
from lakemirror.cli.common import WRONG, is_foreign, print_errors, read_documents, say, supported


@click.command()
@click.option(
    "-f",
    "--file",
    "files",
    required=True,
    multiple=True,
    metavar="FILE",
    help="A manifest; - is standard input.",
)
def validate(files: tuple[str, ...]) -> None:
    """Check manifests: one line for each error, FILE: path: message.

    Warnings say so, and do not count as errors. A file may hold several documents; those of other kinds are
    left alone.
    """
    results = [_file_is_good(file) for file in files]
    if not all(results):
        sys.exit(WRONG)


def _file_is_good(file: str) -> bool:
    """Check all documents of a file, and print the result of each. Return whether all are valid."""
    try:
        documents = read_documents(file)
    except ManifestError as e:
        print_errors(file, e)
        return False
    ours = [(i, d) for i, d in enumerate(documents, start=1) if not is_foreign(d)]
    if not ours:
        print_errors(file, ManifestError([("", "holds no CdcPipeline")]))
        return False
    several = len(documents) > 1
    results = [_document_is_good(f"{file}#{i}" if several else file, d) for i, d in ours]
    return all(results)


def _document_is_good(where: str, document: Any) -> bool:
    try:
        pipeline = supported(document)
    except ManifestError as e:
        print_errors(where, e)
        return False
    for path, message in unencrypted_logins(pipeline.spec):
        say(f"{where}: warning: {line(path, message)}", err=True)
    say(f"{where}: {pipeline.name} is valid")
    return True
