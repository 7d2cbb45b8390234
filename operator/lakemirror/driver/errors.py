"""Errors that end a batch or a run; each message names the object and says what to do."""


class LakemirrorError(Exception):
    """Base of every error that Lakemirror raises on purpose."""


class CheckpointInUse(LakemirrorError):
    """Another driver owns the checkpoint."""


class SourceRestarted(LakemirrorError):
    """Positions of the source start again: a new epoch has to be declared in ``ordering.epochs``."""


class BatchMismatch(LakemirrorError):
    """A batch was committed before with another range of input: the checkpoint is not the table's."""


class SchemaDriftRefused(LakemirrorError):
    """A schema changed under ``schemaEvolution: fail``."""


class BadRecordRefused(LakemirrorError):
    """A record cannot be applied under ``onBadRecord: fail``."""


class TableFailed(LakemirrorError):
    """A table could not be written, also when retried alone."""
