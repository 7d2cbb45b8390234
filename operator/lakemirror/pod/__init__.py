"""The driver inside of a pod: where its manifest and Secrets are, and where it reports."""
