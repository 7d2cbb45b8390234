"""The operator: runs a driver for each CdcPipeline and tells its state in the status. No Spark."""
