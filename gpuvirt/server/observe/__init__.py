"""What people see of a server: one collection of facts, from which `ps`, `devices`, `top`, the metrics and the report are derived."""
