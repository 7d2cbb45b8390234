"""Generates what ``scripts/monitoring`` writes: the table of metrics and the Grafana dashboards."""
