"""Every example is valid, is what the operator can carry out, and is run by a test."""

from __future__ import annotations

from pathlib import Path

import jsonschema
import pytest
import yaml
from click.testing import CliRunner

from lakemirror.api import crd, load_documents
from lakemirror.cli.main import main

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"


def is_pipeline(path: Path) -> bool:
    documents = yaml.safe_load_all(path.read_text("utf-8"))
    return any(each and each.get("kind") == "CdcPipeline" for each in documents)


PIPELINES = sorted(
    path for path in EXAMPLES.rglob("*.yaml") if "testdata" not in path.parts and is_pipeline(path)
)


@pytest.mark.parametrize("manifest", PIPELINES, ids=lambda path: str(path.relative_to(EXAMPLES)))
@pytest.mark.parametrize("command", ["validate", "render"])
def test_an_example_is_taken_as_it_is(command: str, manifest: Path) -> None:
    done = CliRunner().invoke(main, [command, "-f", str(manifest)])
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize("manifest", PIPELINES, ids=lambda path: str(path.relative_to(EXAMPLES)))
def test_an_example_fits_the_schema_of_the_crd(manifest: Path) -> None:
    schema = crd.resource_schema()
    for document in load_documents(manifest.read_text("utf-8")):
        if document["kind"] == "CdcPipeline":
            jsonschema.Draft7Validator(schema).validate(document)


def test_every_example_is_named_by_a_test() -> None:
    """By its path, or by its folder's name in quotes in the tests of examples."""
    tests = {path: path.read_text("utf-8") for path in (ROOT / "tests").rglob("*.py")}
    of_examples = "".join(text for path, text in tests.items() if path.stem.startswith("test_examples"))
    everything = "".join(tests.values())
    forgotten = [
        folder.name
        for folder in EXAMPLES.iterdir()
        if folder.is_dir()
        and not any(f"examples/{folder.name}{end}" in everything for end in ('"', "/"))
        and not any(f'"{folder.name}{end}' in of_examples for end in ('"', "/"))
    ]
    assert forgotten == []


def test_the_job_of_a_command_runs_like_a_driver() -> None:
    """With the driver's image, its account and its rights, and with a command that there is."""
    job = yaml.safe_load((ROOT / "examples/commands/job.yaml").read_text("utf-8"))
    rendered = CliRunner().invoke(main, ["render", "-f", str(ROOT / "examples/kubernetes/pipeline.yaml")])
    objects = [each for each in yaml.safe_load_all(rendered.stdout) if each]
    [driver] = [each["spec"]["template"]["spec"] for each in objects if each["kind"] == "StatefulSet"]
    [beside], pod = driver["containers"], job["spec"]["template"]["spec"]
    [container] = pod["containers"]
    assert pod["serviceAccountName"] == driver["serviceAccountName"]
    assert pod["securityContext"] == driver["securityContext"]
    for field in ("image", "securityContext", "envFrom"):
        assert container[field] == beside[field], field
    assert container["resources"]["limits"]["memory"] == "3Gi"
    assert container["args"][1] in main.commands
