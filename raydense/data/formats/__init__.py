"""Formats of other tools: one module per format, each with what it reads and what it writes."""
