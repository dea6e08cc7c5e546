"""Builds a retrieval data set from questions, documents and answers, and judges it: DuReader-retrieval (Qiu et al. 2022)."""
