"""A backend for Triton, by its own extension point (entry points "triton.backends"): NVIDIA's, for a device of a compute capability that Triton's
compiler does not know. `gpuvirt run` puts this folder on PYTHONPATH and selects it (TRITON_DEFAULT_BACKEND) where the GPUs are software ones."""
