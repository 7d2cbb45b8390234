"""Times as the Kubernetes API writes them: RFC 3339, in UTC, whole seconds (``metav1.Time``)."""

from __future__ import annotations

from datetime import UTC, datetime


def moment(text: str | None) -> datetime | None:
    """Parse ``text``, if there is any."""
    return datetime.fromisoformat(text) if text else None


def iso(when: datetime) -> str:
    """Format ``when`` as the API writes it."""
    return when.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
