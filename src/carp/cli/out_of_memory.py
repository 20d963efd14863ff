"""Is an exception the refusal of memory? torch raises three different ones."""

_CPU_ALLOCATOR = ("can't allocate memory", "not enough memory", "Cannot allocate memory", "std::bad_alloc")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether it, or what led to it, is an allocation that failed; torch is not imported to find out."""
    seen: BaseException | None = error
    for _ in range(10):  # links of a chain that could be a circle
        if seen is None:
            return False
        kinds = {kind.__name__ for kind in type(seen).__mro__}
        if "MemoryError" in kinds or "OutOfMemoryError" in kinds:
            return True
        if isinstance(seen, RuntimeError) and any(words in str(seen) for words in _CPU_ALLOCATOR):
            return True
        seen = seen.__cause__ or seen.__context__
    return False
