"""What the tool costs, as ratios measured side by side in one run: ``python -m benchmarks``."""
