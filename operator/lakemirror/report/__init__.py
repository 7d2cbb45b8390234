"""The report of a pipeline: a page made from its audit and its quarantine, without Spark."""
