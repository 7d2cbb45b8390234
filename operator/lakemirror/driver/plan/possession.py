"""Whether a table's mirror belongs to the checkpoint of this pipeline, or may be taken over from another."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from lakemirror.driver.checkpoint.possession import (
    NEIGHBOURS,
    Neighbours,
    Possessor,
    Verdict,
    is_of_another,
    judge,
)
from lakemirror.driver.plan.refusal import Refused, new_mirror
from lakemirror.driver.tables.mirror import CHECKPOINT_PROPERTY

if TYPE_CHECKING:
    from lakemirror.driver.plan.mirrored import MirroredTable

_WHY: Final = {
    Verdict.RELEASED: "no driver uses that checkpoint now",
    Verdict.SILENT: "that checkpoint's driver has ended, or has shown no life for the length of its lease",
    Verdict.GONE: "that checkpoint no longer exists",
    Verdict.IN_USE: "whose driver is running",
    Verdict.UNREADABLE: "which cannot be read to find out whether its driver is running",
    Verdict.LOST: "which has taken it over from this one and cannot be seen from here",
}


@dataclass(frozen=True)
class Possession:
    """The checkpoint of a pipeline as a possessor of mirrors.

    ``app_ids`` are its applications in the logs of mirrors. ``warn`` is told when it takes a mirror over.
    """

    ours: Possessor
    app_ids: Collection[str]
    warn: Callable[[str], None]
    neighbours: Neighbours = NEIGHBOURS


def check_possession(table: MirroredTable) -> None:
    """Check that this checkpoint may write the mirror, which must exist. Raises Refused."""
    _verdict(table)


def require_possession(table: MirroredTable) -> None:
    """Check that no other checkpoint has taken the mirror over since its form was last brought up to date.

    Only a driver that showed no life for the length of its lease can lose a mirror. Raises Refused.
    """
    if not is_possessed(table):
        raise Refused(
            f"another checkpoint has meanwhile taken over the target {table.mirror.location}: "
            f"{_remedy(table)}"
        )


def is_possessed(table: MirroredTable) -> bool:
    """Return whether the mirror names this checkpoint, or none."""
    possession = table.possession
    return possession is None or not is_of_another(table.properties.get(CHECKPOINT_PROPERTY), possession.ours)


def possessor_to_note(table: MirroredTable) -> tuple[dict[str, str], str | None]:
    """Return the property to set so that the mirror belongs to this checkpoint, if it is not set yet.

    Also returns the warning if the mirror is taken over from another checkpoint. Raises Refused.
    """
    possession = table.possession
    if possession is None:
        return {}, None
    if not table.mirror.exists:
        return {CHECKPOINT_PROPERTY: possession.ours.to_text()}, None
    verdict, named = _verdict(table), _named(table)
    if verdict is not Verdict.CLAIM and not verdict.takes_over:
        return {}, None
    ours = possession.ours if named is None else possession.ours.after(named)
    noted = {CHECKPOINT_PROPERTY: ours.to_text()}
    if verdict is Verdict.CLAIM:
        return noted, None
    return noted, (
        f"table {table.name}: this pipeline takes over the mirror {table.mirror.location}, which another "
        f"checkpoint of a pipeline of this name has written: {_WHY[verdict]}. Until now, its rows show what "
        "that one has read. If that pipeline is still needed, give one of the two a target of its own"
    )


def _verdict(table: MirroredTable) -> Verdict:
    possession = table.possession
    if possession is None:
        return Verdict.OURS
    verdict = judge(
        possession.ours,
        _named(table),
        wrote=lambda: any(table.last_batch_of(each) is not None for each in possession.app_ids),
        look=lambda other: possession.neighbours.look(table.spark, possession.ours, other),
    )
    if verdict.refuses:
        raise Refused(
            f"the target {table.mirror.location} belongs to another checkpoint of a pipeline of this name, "
            f"{_WHY[verdict]}: {_remedy(table)}"
        )
    return verdict


def _named(table: MirroredTable) -> Possessor | None:
    try:
        return Possessor.from_text(table.properties.get(CHECKPOINT_PROPERTY))
    except ValueError as error:
        raise Refused(
            f"the table property {CHECKPOINT_PROPERTY} of the target {table.mirror.location} is damaged "
            f"({error}), so that nothing tells which checkpoint it belongs to: set it as it was, or to '' to "
            "let this pipeline have the mirror"
        ) from None


def _remedy(table: MirroredTable) -> str:
    return (
        f"stop that pipeline, or set {new_mirror(table.settings)}. The mirror's table property "
        f"{CHECKPOINT_PROPERTY} names that checkpoint; setting it to '' once its driver has stopped gives "
        "the mirror to this pipeline"
    )
