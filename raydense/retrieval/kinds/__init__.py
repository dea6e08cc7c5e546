"""The kinds of indexes: a file each, with its class `Kind`."""
