"""A device on the CPU: ordinary CPU tensors whose storages are tagged as living on a device."""
