"""The one error of this package."""

from __future__ import annotations


class AuditError(Exception):
    """Something cannot be read or is not what was asked for; the message says what, what exists, and what to do."""
