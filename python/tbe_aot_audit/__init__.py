"""What a build of tbe-aot holds, and whether it is what was built: read from a wheel, an installation or a folder of artifacts.

Nothing is loaded or run, and neither torch nor triton, neither a GPU nor its driver is needed:

    manifest.py, pack.py, cubin.py, library.py    what the files say
    source.py                                     where they lie
    verify.py, compare.py, explain.py, budget.py  the answers
    report.py, tables.py, cli.py                  how they are shown
"""
