"""Formulas of the optimizers, a file each; `common.optimizers.choose` picks one at compile time."""
