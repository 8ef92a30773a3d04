"""The only part that imports IPython, ipykernel and ipywidgets."""
