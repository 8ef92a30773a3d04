"""Text and exceptions to a :class:`~cudassert_ipy.model.Failure`. Pure: no torch, no IPython."""
