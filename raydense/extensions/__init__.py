"""The code of users that raydense calls by its name: it is found, its faults are named by their lines, and it is a part of the fingerprint."""
