"""Measured, not guessed: how fast tbe-aot is, beside FBGEMM's CUDA TBE where that is installed.

``python -m benchmarks forward`` and ``python -m benchmarks backward`` measure and write ``<name>.json`` (``--out benchmarks/results`` for what the docs quote);
``python -m benchmarks report`` turns such a file into the tables and the chart of ``docs/performance.md``. No number there has another source.
"""
