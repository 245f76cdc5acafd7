"""Running kernels in CUDA C++ on the host, as Triton's interpreter runs Triton's."""
