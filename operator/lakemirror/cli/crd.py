"""``lakemirror crd``: the CustomResourceDefinition, for ``kubectl apply -f -``."""

from __future__ import annotations

import click

from lakemirror.api.crd import to_yaml


@click.command()
def crd() -> None:
    """Print the CustomResourceDefinition of CdcPipeline."""
    click.echo(to_yaml(), nl=False)
