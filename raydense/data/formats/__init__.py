"""Formats of other tools: one module a family, each with what it reads and what it writes."""
