"""The settings of the stages that build a retrieval data set and judge it."""

from __future__ import annotations
