"""Writes everything that is generated for monitoring."""

from __future__ import annotations

from monitoring import dashboards, metrics


def main() -> None:
    metrics.PAGE.write_text(metrics.page(metrics.PAGE.read_text()))
    dashboards.FOLDER.mkdir(exist_ok=True)
    for path, text in dashboards.files().items():
        path.write_text(text)


if __name__ == "__main__":
    main()
