"""One file a family; :data:`kernels.registry.FAMILIES` names them all."""
