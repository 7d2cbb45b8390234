"""Explains in one line why a driver ended, from its exit code and its last message. Pure."""

from __future__ import annotations

import re
import signal

from lakemirror.controller.values import Ending

_KEPT = 1024
_CAUSED_BY = re.compile(r"^\s*Caused by: (.*\S)", re.MULTILINE)
_THROWN = re.compile(
    r"^(?:: )?((?:[A-Za-z_$][\w$]*\.)+[A-Za-z_$][\w$]*(?:Exception|Error|Failure)\w*\b.*\S"
    r"|[A-Z]\w*(?:Exception|Error): .*\S)",
    re.MULTILINE,
)
_TRACE = re.compile(r"^\s+at [\w.$/<>]+\(|^Traceback \(most recent call last\)|^\s*Caused by: ", re.MULTILINE)


def why(ending: Ending, memory_limit: str = "") -> str:
    """Explain why a container ended, and what to do about it if that is known.

    ``memory_limit`` is the container's, in Kubernetes' notation. Exit codes above 128 are signals:
    https://www.gnu.org/software/bash/manual/html_node/Exit-Status.html
    """
    if ending.reason == "OOMKilled":
        limit = f" of {memory_limit}" if memory_limit else ""
        return (
            f"the driver's container used more memory than its limit{limit} and was killed (OOMKilled): "
            "raise spec.spark.driver.memory. A batch that was begun is repeated as it is, so smaller ones "
            "(maxRecordsPerBatch or maxFilesPerBatch of spec.source) help only after it"
        )
    said = innermost(ending.message)
    code = exit_code(ending.code)
    if not said:
        return f"{code}; its log may say more: kubectl logs POD --previous"
    return f"{said} ({code})" if ending.code > 128 else said


def exit_code(code: int) -> str:
    """Format an exit code with its meaning, such as ``exit code 137 (SIGKILL)``."""
    try:
        return f"exit code {code} ({signal.Signals(code - 128).name})"
    except ValueError:
        return f"exit code {code}"


def innermost(text: str) -> str:
    """Return the innermost cause of a Java or Python stack trace in one line, or the end of other text."""
    text = text.strip()
    if _TRACE.search(text) is None:
        return text[-_KEPT:]
    found = _CAUSED_BY.findall(text) or _THROWN.findall(text)
    line = found[-1] if found else text.splitlines()[-1].strip()
    return str(line)[:_KEPT]
