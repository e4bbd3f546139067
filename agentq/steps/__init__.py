"""The bodies of the steps: each takes a snapshot, does one thing outside any transaction, and returns an outcome."""
