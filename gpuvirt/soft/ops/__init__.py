"""The handlers of opcodes, one module for each group of instructions."""
