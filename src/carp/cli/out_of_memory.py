"""Recognise exceptions that mean out of memory; torch raises three different ones."""

_CPU_ALLOCATOR = ("can't allocate memory", "not enough memory", "Cannot allocate memory", "std::bad_alloc")


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether the exception, or one that caused it, is a failed allocation. Does not import torch."""
    seen: BaseException | None = error
    for _ in range(10):  # a chain of causes may be circular
        if seen is None:
            return False
        kinds = {kind.__name__ for kind in type(seen).__mro__}
        if "MemoryError" in kinds or "OutOfMemoryError" in kinds:
            return True
        if isinstance(seen, RuntimeError) and any(words in str(seen) for words in _CPU_ALLOCATOR):
            return True
        seen = seen.__cause__ or seen.__context__
    return False
