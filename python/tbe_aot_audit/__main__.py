"""``python -m tbe_aot_audit``: the same as ``tbe-aot``."""

from __future__ import annotations

from .cli import main

main()
