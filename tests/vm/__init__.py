"""A virtual machine for what needs a kernel of its own, or root's rights there: RDMA devices without hardware, modules, cgroups.

`python -m tests.vm run -- COMMAND` runs any command in it, `python -m tests.vm rdma` the checks of links over verbs.
Nothing is installed on the host.
"""
