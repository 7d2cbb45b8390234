"""The operator: runs a driver for each CdcPipeline and reports its state in the status. No Spark."""
