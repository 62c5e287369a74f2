"""From a config to a compiled artifact: NVRTC, the C compiler, the cache."""
