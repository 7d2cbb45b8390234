"""The driver inside a pod: where its manifest and Secrets are, and where it reports."""
