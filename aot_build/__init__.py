"""Compiles a folder of kernel specs ahead of time: spec -> plan -> compile -> pack -> emit.

Each stage reads files and writes files, and knows no kernel by name:

    spec.py      <kernel>/spec.toml, checked against a schema and against kernel.py
    planner.py   plan.json: every variant, the cell table, what the profile builds
    compile.py   one batch of variants -> cubins in the content-addressed cache, and their records
    pack.py      <arch>.pack: each distinct cubin once, after the spec's claims about it are checked
    manifest.py  manifest.json: what the packs hold and how it was made
    emit.py      generated/: C++ tables and argument structs

``build.py`` runs them through ninja. Content decides what is stale: every stage writes a file only when its bytes
change, and ninja runs what depends on it (``restat``).
"""
