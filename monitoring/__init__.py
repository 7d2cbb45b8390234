"""What ``scripts/monitoring`` makes: the table of metrics, and Grafana's dashboards."""
