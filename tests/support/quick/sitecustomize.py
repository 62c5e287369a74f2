"""Read by each Python process that has this folder and that of :mod:`quick_worker` on its path: a host's
device process samples for less time."""

import sys

if "tuner.workers.device_worker" in sys.orig_argv:
    import quick_worker

    quick_worker.sample_for_less_time()
