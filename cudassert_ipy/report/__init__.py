"""From a diagnosis to text, HTML, Markdown and a mime bundle. Never imports torch or IPython."""
