"""What a valid operand is: one table of operators, statistics, the guard."""
