"""A property that is computed once for each object, without waiting for that of other objects."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    kept_property = cached_property
else:

    class kept_property(cached_property):  # noqa: N801 (it is used like its base)
        """The same as its base, without the lock that all objects of a class share before Python 3.12.

        Many tables are looked at side by side, and what they ask of a storage takes long.
        """

        def __get__(self, instance: object, owner: type[Any] | None = None) -> Any:
            if instance is None:
                return self
            found = self.func(instance)
            instance.__dict__[self.attrname] = found  # where it is found before this is asked again
            return found
