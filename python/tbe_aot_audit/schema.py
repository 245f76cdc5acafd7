"""The JSON schema of the documents."""

from __future__ import annotations

from typing import Any

from pydantic.json_schema import models_json_schema

from .baseline import BaselineResult
from .compare import Comparison
from .document import DOCUMENT_VERSION, Document
from .explain import Explained
from .listing import Listing, Shown
from .verify import Verification

DOCUMENTS: tuple[type[Document], ...] = (
    Listing,
    Shown,
    Verification,
    Comparison,
    BaselineResult,
    Explained,
)


def documents_schema() -> dict[str, Any]:
    """A schema that is any of the documents; ``document`` says which one."""
    references, schema = models_json_schema(
        [(document, "serialization") for document in DOCUMENTS],
        title=f"Documents of tbe-aot --json, version {DOCUMENT_VERSION}",
    )
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **schema,
        "oneOf": [references[document, "serialization"] for document in DOCUMENTS],
    }
