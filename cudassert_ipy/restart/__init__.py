"""Restart the kernel in place, hand over what must survive, and run the set-up cells again."""
