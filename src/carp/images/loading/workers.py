"""Worker processes that prepare batches. They end immediately, and always together with their parent."""

import atexit
import multiprocessing
import signal
import sys
import warnings
from collections.abc import Generator, Iterable, Iterator
from functools import partial
from typing import Any, TypeVar

from torch._C import _remove_worker_pids
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from carp.compute import distributed
from carp.compute.parent import end_with
from carp.images.loading.chunks import PREFETCH
from carp.images.views.photo_views import without_threads

T = TypeVar("T")


def by_workers(dataset: Dataset[T], items: Iterable[list[tuple[int, int]]], workers: int) -> Generator[T]:
    """Yield the results of `dataset.__getitems__` for every list of (epoch, index) pairs, in order, from workers.

    `workers` is their number on this machine; its processes divide them.
    """
    workers = distributed.share_here(workers)
    without_threads()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "This DataLoader will create", UserWarning)
        loader = DataLoader(
            dataset,
            batch_sampler=items,
            num_workers=workers,
            prefetch_factor=PREFETCH if workers else None,
            collate_fn=_as_it_is,
            worker_init_fn=_depend_on_parent,
        )
        loaded = iter(loader)
    # The workers end here or at exit, not with the last reference, which a traceback may hold: multiprocessing would
    # send them a signal that they ignore, and wait
    end = partial(_end_workers, loaded)
    atexit.register(end)
    try:
        yield from loaded
    finally:
        atexit.unregister(end)
        end()


def _end_workers(loaded: Iterator[Any]) -> None:
    """Kill the workers, which have no state: torch would wait until each has finished its current batch.

    This replaces torch's own shutdown, which could wait for a lock that a killed worker held.
    """
    if not isinstance(loaded, _MultiProcessingDataLoaderIter) or loaded._shutdown:
        return
    loaded._shutdown = True
    _remove_worker_pids(id(loaded))  # from here on, torch does not report their death as a failure
    loaded._worker_pids_set = False
    for worker in loaded._workers:
        worker.kill()
    for worker in loaded._workers:
        worker.join()
    for queue in loaded._index_queues:
        queue.cancel_join_thread()
        queue.close()


def _depend_on_parent(_worker: int) -> None:
    """Make a worker end with its parent, and only then.

    Ctrl-C, `timeout` and batch systems signal the whole process group; only the training process acts on the signal.
    """
    parent = multiprocessing.parent_process()
    if parent is not None and parent.pid is not None:
        end_with(parent.pid)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    # Errors while a batch is prepared are sent to the parent. What remains is a thread of multiprocessing that prints a
    # traceback if a parent that is stopping does not fetch a batch
    sys.excepthook = lambda *_: None


def _as_it_is(rendered: Any) -> Any:
    return rendered
