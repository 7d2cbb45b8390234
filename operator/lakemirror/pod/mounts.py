"""Detects that a Secret or ConfigMap has changed.

The kubelet updates mounted files, but the driver reads them, and its environment, only at startup.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable
from pathlib import Path

_LOOK_EVERY_SECONDS = 10.0


class MountWatch:
    """Detects that a file in ``folders`` differs from its initial state. Contents stay in this process."""

    def __init__(self, folders: Iterable[Path], monotonic: Callable[[], float] = time.monotonic) -> None:
        self._folders = sorted(folders)
        self._monotonic = monotonic
        self._first = self._digest()
        self._looked = monotonic()
        self._changed = False

    def changed(self) -> bool:
        """Return whether the files have changed. Reads them only now and then, however often it is called."""
        now = self._monotonic()
        if not self._changed and now - self._looked >= _LOOK_EVERY_SECONDS:
            self._looked = now
            self._changed = self._digest() != self._first
        return self._changed

    def _digest(self) -> str:
        # The kubelet keeps the files in a hidden folder; the visible names are links to it.
        digest = hashlib.sha256()
        for folder in self._folders:
            for file in sorted(folder.iterdir()) if folder.is_dir() else ():
                if file.is_file():
                    digest.update(f"{file}\0{hashlib.sha256(file.read_bytes()).hexdigest()}\0".encode())
        return digest.hexdigest()
