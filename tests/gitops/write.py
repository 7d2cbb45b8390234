"""Writes the test data of the health check for Argo CD, from the operator's own statuses.

PYTHONPATH=operator python -m tests.gitops.write
"""

from __future__ import annotations

from typing import Any

import yaml

from tests.gitops.judges import CUSTOMIZATION, argo
from tests.gitops.states import STATES

JUDGED = ("observedGeneration", "phase", "reason", "conditions")
"""The part of a status that says how a pipeline is; each new counter would change these files otherwise."""


def files() -> dict[str, str]:
    """From the name of a file to its text: one a state, and the list of tests."""
    found, tests = {}, []
    for name, state in STATES.items():
        body = state.resource()
        body["status"] = {part: said for part, said in body["status"].items() if part in JUDGED}
        verdict = argo(body)
        file = f"{verdict.status.lower()}_{name}.yaml"
        found[file] = text(body)
        tests.append({"healthStatus": verdict._asdict(), "inputPath": f"testdata/{file}"})
    return {**found, "health_test.yaml": text({"tests": tests})}


def text(document: Any) -> str:
    return yaml.safe_dump(document, sort_keys=False, width=110, allow_unicode=True)


def main() -> None:
    folder = CUSTOMIZATION / "testdata"
    folder.mkdir(exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    for name, content in files().items():
        (CUSTOMIZATION if name == "health_test.yaml" else folder).joinpath(name).write_text(content)


if __name__ == "__main__":
    main()
