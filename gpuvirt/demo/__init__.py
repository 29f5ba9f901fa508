"""The demo: ordinary CUDA programs, run through gpuvirt on software GPUs and compared with NumPy."""
