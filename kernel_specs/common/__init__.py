"""Device functions that several kernels share."""
