"""What each opcode does: a module a group of instructions."""
