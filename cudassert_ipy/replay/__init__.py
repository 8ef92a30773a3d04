"""Run a failed cell again in a forked child, on the CPU, without touching this process."""
