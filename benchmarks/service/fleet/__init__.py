"""The parts of :mod:`benchmarks.service.fleet_gpus`."""
