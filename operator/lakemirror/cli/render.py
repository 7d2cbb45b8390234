"""``lakemirror render``: the Kubernetes objects of a pipeline, as the operator would create them."""

from __future__ import annotations

import sys

import click
import yaml

from lakemirror.cli.common import WRONG, driver_image_option, manifest_option, read_pipeline, say, set_option
from lakemirror.controller import build, places
from lakemirror.controller.build import Application
from lakemirror.controller.decide import wrong_in_itself
from lakemirror.controller.fields import revision


@click.command()
@manifest_option
@click.option(
    "--backend",
    type=click.Choice(["native", "kubeflow", "apache"]),
    help="Render for this back end, whatever spec.spark.backend says.",
)
@click.option("-n", "--namespace", metavar="NAMESPACE", help="Default: the manifest's, or default.")
@driver_image_option
@set_option
def render(
    file: str, backend: str | None, namespace: str | None, driver_image: str, settings: tuple[str, ...]
) -> None:
    """Print the objects that the operator makes of a manifest, as YAML.

    Local paths, which the operator refuses where no volume is mounted, are named on standard error.
    """
    given = (*settings, *([f"spark.backend={backend}"] if backend else []))
    pipeline = read_pipeline(file, given)
    where = namespace or pipeline.metadata.namespace or "default"
    refusal = wrong_in_itself(pipeline.spec)
    if refusal is not None:
        say(f"{file}: {refusal.message}", err=True)
        sys.exit(WRONG)
    for wrong in places.wrong(pipeline.spec):
        say(f"{file}: the operator would refuse {wrong}", err=True)
    image = pipeline.spec.spark.image or driver_image
    app = Application(
        where,
        pipeline.name,
        pipeline.spec,
        revision(pipeline.spec, image),
        image,
        held=pipeline.spec.suspend,
    )
    for document in (*build.foundations(app), build.workload(app)):
        click.echo(f"---\n{yaml.dump(document, Dumper=_Readable, sort_keys=False, width=110)}", nl=False)


class _Readable(yaml.SafeDumper):
    """Writes YAML without anchors, and text of several lines as a block."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Readable.add_representer(str, _text)
