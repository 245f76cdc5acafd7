"""What ``--json`` prints: documents with a version, described by a JSON schema (``tbe-aot schema``)."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

# Raised when a field changes its meaning or goes; new fields leave it as it is.
DOCUMENT_VERSION = 1


class Part(BaseModel):
    """A part of a document."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Document(Part):
    """A whole document; ``document`` says which, and names the command that prints it."""

    version: int = DOCUMENT_VERSION
    document: str
