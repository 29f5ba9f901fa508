"""LLVM IR: functions under lane masks, memory accesses, runtime helpers."""
