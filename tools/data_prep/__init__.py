"""Turns text into token files: see tools/prepare_data.py."""


class UserError(Exception):
    """Wrong input: the message says what, where, and what was expected. Exit code 2."""
