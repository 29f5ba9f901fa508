"""What frameworks are given on software GPUs, beside `native/compat`."""
